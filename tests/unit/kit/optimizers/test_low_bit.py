from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from snugfit.core.parameters import parameter_groups
from snugfit.errors import SettingError
from snugfit.kit.optimizers.low_bit import bitsandbytes_adamw, state_bytes, torchao_adamw
from snugfit.kit.serialize import pack
from snugfit.run.checkpoint.checkpoint_files import load_newest, write
from snugfit.step.optimizer import load_optimizer

SETTINGS: dict[str, Any] = {"lr": 0.01, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.1}


def bitsandbytes(model: nn.Module) -> torch.optim.Optimizer:
    return bitsandbytes_adamw(parameter_groups(model), "adamw_8bit", 1024, **SETTINGS)


def torchao(model: nn.Module) -> torch.optim.Optimizer:
    return torchao_adamw(parameter_groups(model), "adamw_4bit", 1024, **SETTINGS)


ALL = pytest.mark.parametrize("make", [bitsandbytes, torchao])


def net(seed: int = 0) -> nn.Sequential:
    """A small weight, a large one, and a large one that does not lie row by row."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 64), nn.Linear(64, 32))
    model[2].weight.data = model[2].weight.data.t().contiguous().t()
    return model


def backward(model: nn.Module, seed: int) -> None:
    model.zero_grad()
    model(torch.randn(8, 16, generator=torch.Generator().manual_seed(seed))).square().mean().backward()


@pytest.mark.parametrize(("make", "bytes_an_element", "block"), [(bitsandbytes, 1, 256), (torchao, 0.5, 128)])
def test_large_weights_have_states_of_few_bits_and_small_ones_of_32(
    make: Any, bytes_an_element: float, block: int
) -> None:
    model = net()
    optimizer = make(model)
    backward(model, 0)
    optimizer.step()
    large = sum(p.numel() for p in model.parameters() if p.numel() >= 1024)
    small = sum(p.numel() for p in model.parameters() if p.numel() < 1024)
    assert large == 2 * 2048
    assert state_bytes(optimizer) == 2 * (large * bytes_an_element + 4 * large / block + 4 * small)


def test_weights_that_blocks_do_not_divide_keep_states_of_32_bits() -> None:
    model = nn.Linear(1025, 1, bias=False)
    optimizer = torchao(model)
    model(torch.ones(1, 1025)).sum().backward()
    optimizer.step()
    assert state_bytes(optimizer) == 2 * 4 * 1025


@ALL
def test_a_state_that_was_saved_goes_on_bit_for_bit(make: Any, tmp_path: Any) -> None:
    whole, model = net(), net(1)
    unbroken, resumed = make(whole), make(model)
    for update in range(3):
        backward(whole, update)
        unbroken.step()
    write(tmp_path / "update-1", pack({"optimizer": unbroken.state_dict()}), keep=2)
    state = load_newest(tmp_path).parts["optimizer"]
    model.load_state_dict(whole.state_dict())
    load_optimizer(resumed, state)
    for update in range(3, 6):
        for each, optimizer in ((whole, unbroken), (model, resumed)):
            backward(each, update)
            optimizer.step()
    assert all(map(torch.equal, whole.state_dict().values(), model.state_dict().values()))
    assert model[2].weight.stride() == net()[2].weight.stride(), "the layout is the model's own"
    assert state_bytes(resumed) == state_bytes(unbroken)


@ALL
def test_a_weight_that_does_not_lie_row_by_row_is_updated_like_one_that_does(make: Any) -> None:
    models = [net(), net()]
    models[1][2].weight.data = models[1][2].weight.data.contiguous()
    for model in models:
        optimizer = make(model)
        for update in range(3):
            backward(model, update)
            optimizer.step()
    assert not models[0][2].weight.is_contiguous()
    torch.testing.assert_close(models[0][2].weight, models[1][2].weight, rtol=1e-5, atol=1e-6)


@ALL
def test_rates_stay_numbers_and_each_group_has_its_own(make: Any) -> None:
    model = net()
    optimizer = make(model)
    before = copy.deepcopy(model.state_dict())
    optimizer.param_groups[0]["lr"] = 0.0
    backward(model, 0)
    optimizer.step()
    assert [group["lr"] for group in optimizer.param_groups] == [0.0, 0.01]
    moved = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert moved == {"0.bias", "1.bias", "2.bias"}


@ALL
def test_a_parameter_without_a_gradient_has_no_state_and_stays(make: Any) -> None:
    model = net()
    model[1].weight.requires_grad_(False)
    optimizer = make(model)
    before = model[1].weight.clone()
    backward(model, 0)
    optimizer.step()
    assert torch.equal(model[1].weight, before)
    assert model[1].weight not in optimizer.state


@ALL
def test_fake_parameters_get_states_of_the_same_size(make: Any) -> None:
    real = net()
    optimizer = make(real)
    backward(real, 0)
    optimizer.step()
    with FakeTensorMode():
        fake = nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 64), nn.Linear(64, 32))
        imagined = make(fake)
        fake(torch.ones(8, 16)).square().mean().backward()
        imagined.step()
        imagined.step()
    assert state_bytes(imagined) == state_bytes(optimizer)
    backward(real, 1)
    optimizer.step()  # nothing fake is left behind


@ALL
def test_float64_is_refused(make: Any) -> None:
    with pytest.raises(
        SettingError, match=r"^adamw_.bit: computes in float32, and the weight '0\.weight' is in"
    ):
        make(net().double())


@ALL
def test_a_sparse_gradient_is_refused_and_changes_nothing(make: Any) -> None:
    model = nn.Sequential(nn.Embedding(64, 32, sparse=True), nn.Linear(32, 64))
    before = copy.deepcopy(model.state_dict())
    optimizer = make(model)
    model(torch.tensor([1, 2])).sum().backward()
    with pytest.raises(SettingError, match=r"^adamw_.bit: the gradient of '0\.weight' is sparse"):
        optimizer.step()
    assert all(map(torch.equal, model.state_dict().values(), before.values()))


@ALL
def test_a_state_of_another_model_is_refused(make: Any) -> None:
    model = net()
    optimizer = make(model)
    backward(model, 0)
    optimizer.step()
    with pytest.raises(SettingError, match="^optimizer: the state is of another one"):
        load_optimizer(make(nn.Linear(4, 4)), optimizer.state_dict())


def test_a_state_of_other_shapes_is_refused() -> None:
    model, wider = nn.Linear(32, 64), nn.Linear(64, 64)
    optimizer = torchao(model)
    model(torch.ones(1, 32)).sum().backward()
    optimizer.step()
    with pytest.raises(SettingError, match="does not fit a weight of the shape"):
        load_optimizer(torchao(wider), optimizer.state_dict())


def test_paged_states_are_paged_again_after_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    model = net()
    optimizer = bitsandbytes_adamw(parameter_groups(model), "adamw_8bit", 1024, True, **SETTINGS)
    backward(model, 0)
    with pytest.warns(UserWarning, match="Paged optimizers are not supported on CPU"):
        optimizer.step()
    saved = copy.deepcopy(optimizer.state_dict())
    made = []
    plain = type(optimizer).get_state_buffer
    monkeypatch.setattr(
        type(optimizer),
        "get_state_buffer",
        lambda self, p, dtype: made.append(plain(self, p, dtype)) or made[-1],
    )
    optimizer.load_state_dict(saved)
    held = [state[name] for state in optimizer.state.values() for name in ("state1", "state2")]
    assert [id(tensor) for tensor in held] == [id(tensor) for tensor in made]
    assert any(tensor.any() for tensor in held)


def test_the_names_of_the_libraries_that_are_built_upon_have_not_moved() -> None:
    from bitsandbytes.optim import AdamW8bit
    from torchao.optim import AdamW4bit

    for owner, names in (
        (AdamW4bit, ("_new_buffer", "_subclass_zeros")),
        (AdamW8bit, ("fill_qmap", "get_config", "get_state_buffer", "update_step")),
    ):
        assert [name for name in names if not callable(getattr(owner, name, None))] == []
