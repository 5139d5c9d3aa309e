from __future__ import annotations

import threading
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from snugfit.core.batch import Batch
from snugfit.errors import ModelError, SettingError
from snugfit.kit.skeleton import skeleton
from snugfit.planner.trace.fake_tensors import BareOptimizer, fake_, fake_batch
from snugfit.planner.trace.known_values import KnownValues


class Holds(nn.Module):
    def __init__(self, held: object) -> None:
        super().__init__()
        self.layer, self.held = nn.Linear(2, 2), held

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layer(rows)
        return found


def tied() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    return model


def test_a_skeleton_holds_nothing_and_keeps_shapes_types_strides_and_what_trains() -> None:
    model = nn.Sequential(nn.Linear(3, 2).half(), nn.BatchNorm1d(2))
    model[0].weight = nn.Parameter(torch.zeros(3, 2, dtype=torch.float16).t(), requires_grad=False)
    bare = skeleton(model)
    for (name, own), (bare_name, other) in zip(
        model.state_dict(keep_vars=True).items(), bare.state_dict(keep_vars=True).items(), strict=True
    ):
        assert name == bare_name and other.is_meta
        assert (own.shape, own.dtype, own.stride(), own.requires_grad) == (
            other.shape,
            other.dtype,
            other.stride(),
            other.requires_grad,
        )
    assert bare[0].weight.stride() == (1, 2)


def test_what_is_shared_stays_shared_in_a_skeleton_a_fake_model_and_a_model_made_anew() -> None:
    bare = skeleton(tied())
    assert bare[1].weight is bare[0].weight
    fake = fake_(bare, FakeTensorMode(), "cpu")
    assert fake[1].weight is fake[0].weight and isinstance(fake[0].weight, FakeTensor)
    real = fake_(skeleton(tied()), nullcontext(), "cpu")
    assert real[1].weight is real[0].weight and type(real[0].weight.data) is torch.Tensor


def test_the_model_itself_is_not_touched() -> None:
    model = tied()
    weight = model[0].weight
    fake_(skeleton(model), FakeTensorMode(), "cpu")
    assert model[0].weight is weight and type(weight.data) is torch.Tensor


def test_a_module_that_is_left_out_of_a_skeleton_has_an_empty_one_in_its_place() -> None:
    model = tied()
    bare = skeleton(model, without=[model[0]])
    assert type(bare[0]) is nn.Identity and bare[1].weight.is_meta
    assert type(model[0]) is nn.Linear


@pytest.mark.parametrize(
    "held",
    [threading.Lock(), (each for each in range(3)), torch, [nn.Linear(1, 1).weight * 2], [threading.Lock()]],
)
def test_what_cannot_be_copied_is_the_models_own(held: object) -> None:
    bare = skeleton(Holds(held))
    assert bare.held is held and bare.layer.weight.is_meta


def test_a_tensor_that_is_neither_parameter_nor_buffer_is_a_copy_that_may_be_written_to() -> None:
    own = nn.Linear(1, 1).weight * 2
    held = skeleton(Holds(own)).held
    assert torch.equal(held, own) and held is not own  # type: ignore[arg-type]
    assert held.untyped_storage().data_ptr() != own.untyped_storage().data_ptr()  # type: ignore[union-attr]


def test_what_can_be_copied_is_beside_what_cannot() -> None:
    model = Holds(threading.Lock())
    model.names = ["a"]  # type: ignore[assignment]
    assert skeleton(model).names == ["a"] and skeleton(model).names is not model.names


@pytest.mark.parametrize(
    "norm",
    [nn.utils.weight_norm, nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.spectral_norm],
)
@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
def test_weights_that_are_computed_from_others_are_no_hindrance(norm: object) -> None:
    model = norm(nn.Linear(2, 3))  # type: ignore[operator]
    assert {name for name, _ in skeleton(model).named_parameters()} == {
        name for name, _ in model.named_parameters()
    }


def test_a_lazy_layer_is_refused_by_its_name() -> None:
    with pytest.raises(ModelError, match="'0.weight' has no shape yet"):
        skeleton(nn.Sequential(nn.LazyLinear(2)))


def test_a_torchscript_module_is_refused_by_its_name() -> None:
    scripted = torch.jit.trace(nn.Linear(2, 2), torch.zeros(1, 2))
    with pytest.raises(ModelError, match="'0' is a TorchScript module"):
        skeleton(nn.Sequential(scripted))


def test_a_fake_batch_knows_its_integers_and_not_its_floats() -> None:
    mode = FakeTensorMode()
    values = KnownValues(mode)
    batch = fake_batch(Batch.of({"x": torch.ones(2, 3), "labels": torch.tensor([4, 5])}), mode, values)
    labels = batch.data["labels"]
    assert isinstance(labels, FakeTensor) and isinstance(batch.data["x"], FakeTensor)
    select, item = torch.ops.aten.select.int, torch.ops.aten._local_scalar_dense.default
    with mode:
        second = labels[1]
    values.follow(select, (labels, 0, 1), {}, [labels], [second])
    assert values.call(item, (second,), {}, [second]) == (True, 5)
    assert values.call(item, (batch.data["x"],), {}, [batch.data["x"]]) == (False, None)


def test_an_optimizer_is_planned_with_its_groups_and_its_states() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    optimizer = torch.optim.AdamW(
        [{"params": model[0].parameters(), "lr": 0.5}, {"params": model[1].parameters()}]
    )
    for _ in range(3):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    bare = BareOptimizer.of(optimizer, model)
    mode = FakeTensorMode()
    fake = fake_(skeleton(model), mode, "cpu")
    made = bare.on(fake, mode)
    assert type(made) is torch.optim.AdamW and made is not optimizer
    assert [[id(each) for each in group["params"]] for group in made.param_groups] == [
        [id(each) for each in layer.parameters()] for layer in fake
    ]
    assert [group["lr"] for group in made.param_groups] == [0.5, 1e-3]
    state = made.state[fake[0].weight]
    assert isinstance(state["exp_avg"], FakeTensor) and state["exp_avg"].shape == (3, 2)
    assert state["step"].item() == 3


def test_an_optimizer_keeps_what_its_class_keeps_and_not_what_a_scheduler_bound_to_it() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.scale = [3.0]  # type: ignore[attr-defined]
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    bare = BareOptimizer.of(optimizer, model).optimizer
    assert bare.scale == [3.0] and bare.scale is not optimizer.scale  # type: ignore[attr-defined]
    assert "step" in vars(optimizer) and "step" not in vars(bare)


def test_an_optimizer_of_another_model_is_refused() -> None:
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    with pytest.raises(SettingError, match="2 of its parameters are not of the model"):
        BareOptimizer.of(optimizer, nn.Linear(2, 2))
