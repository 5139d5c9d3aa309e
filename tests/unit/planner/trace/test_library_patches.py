from __future__ import annotations

import contextlib
import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.optim import optimizer

from snugfit.kit.skeleton import skeleton
from snugfit.planner.trace import library_patches
from snugfit.planner.trace.fake_tensors import fake_
from snugfit.planner.trace.library_patches import as_real

MODE = FakeTensorMode()


def fake_model() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    return fake_(skeleton(model), MODE, "cpu")  # type: ignore[return-value]


def state() -> tuple[Any, ...]:
    """What of torch the patches touch."""
    from torch.utils import _foreach_utils

    return (
        nn.Module._apply,
        list(optimizer._foreach_supported_types),
        list(_foreach_utils._foreach_supported_types),
        torch.backends.mha.get_fastpath_enabled(),
    )


def test_torch_refuses_to_change_the_type_of_a_fake_model_and_within_it_does_not() -> None:
    with pytest.raises(RuntimeError), MODE:  # where this moves, the patch may go
        fake_model().to(torch.float16)
    model = fake_model()
    with as_real(), MODE:
        model.to(torch.float16)
    assert {each.dtype for each in model.parameters()} == {torch.float16}
    assert model[1].running_mean.dtype == torch.float16
    assert all(isinstance(each, FakeTensor) for each in model.parameters())


def test_tied_weights_stay_tied_and_parameters_stay_parameters() -> None:
    model = fake_model()
    model[1].weight = model[0].bias
    model[0].weight.requires_grad_(False)
    with as_real(), MODE:
        model.double()
    assert model[1].weight is model[0].bias and model[0].bias.dtype == torch.float64
    assert isinstance(model[0].weight, nn.Parameter) and not model[0].weight.requires_grad


def test_a_real_model_moves_within_as_it_does_outside() -> None:
    model = nn.Linear(2, 2)
    weight = model.weight
    with as_real():
        model.half()
    assert model.weight is weight and weight.dtype == torch.float16


def test_optimizers_take_fake_parameters_for_real_ones() -> None:
    parameters = [torch.nn.Parameter(each) for each in fake_model().parameters()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optimizer, "_get_foreach_kernels_supported_devices", lambda: ["cpu"])
        outside = optimizer._default_to_fused_or_foreach(parameters, False)
        with as_real():
            within = optimizer._default_to_fused_or_foreach(parameters, False)
    assert (outside, within) == ((False, False), (False, True))


def test_transformers_takes_fake_tensors_for_real_ones() -> None:
    import_utils = pytest.importorskip("transformers.utils.import_utils")
    fake = next(fake_model().parameters())
    assert import_utils.is_fake_tensor(fake)
    with as_real():
        assert not import_utils.is_fake_tensor(fake) and not import_utils.is_tracing(fake)
    assert import_utils.is_fake_tensor(fake)


def test_torchs_encoder_is_scored_with_a_mask() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    encoder = fake_(skeleton(nn.TransformerEncoder(layer, 1)), MODE, "cpu").eval()
    with as_real(), MODE, torch.no_grad():
        found = encoder(torch.zeros(2, 3, 8), src_key_padding_mask=torch.zeros(2, 3, dtype=torch.bool))
    assert found.shape == (2, 3, 8)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("total", [None, 6])
def test_sequences_are_padded_as_torch_pads_them(batch_first: bool, total: int | None) -> None:
    rows, lengths = torch.randn(4, 5, 2), torch.tensor([5, 3, 3, 1])
    packed = nn.utils.rnn.pack_padded_sequence(rows, lengths, batch_first=True)
    own = nn.utils.rnn.pad_packed_sequence(packed, batch_first, 7.0, total)
    with as_real():
        other = nn.utils.rnn.pad_packed_sequence(packed, batch_first, 7.0, total)
    assert torch.equal(own[0], other[0]) and own[0].stride() == other[0].stride()
    assert torch.equal(own[1], other[1])


@pytest.mark.parametrize("error", [None, ZeroDivisionError])
def test_all_is_as_before_afterwards(error: type[Exception] | None) -> None:
    before = state()
    with contextlib.suppress(ZeroDivisionError), as_real():
        assert state()[0] is not before[0]
        if error is not None:
            raise error
    assert state() == before


def test_a_fake_buffer_is_copied_without_reading_memory_that_it_lacks() -> None:
    with MODE:
        buffer = torch.empty(3, 2)
    with as_real(), MODE, warnings.catch_warnings():
        warnings.simplefilter("error")  # torch warns where it reads the memory of a fake tensor
        copied = copy.deepcopy([buffer, buffer])
    assert copied[0] is copied[1] is not buffer and copied[0].shape == (3, 2)


def test_what_is_loaded_within_makes_its_constants_of_real_tensors(tmp_path, monkeypatch) -> None:
    (tmp_path / "lately_loaded.py").write_text("import torch\nTABLE = torch.tensor([1.0, 2.0])\n")
    monkeypatch.syspath_prepend(tmp_path)
    with as_real(), MODE:
        import lately_loaded

        assert isinstance(torch.ones(1), FakeTensor)
    assert type(lately_loaded.TABLE) is torch.Tensor and lately_loaded.TABLE.tolist() == [1.0, 2.0]


def test_what_a_library_compiles_as_it_is_loaded_is_compiled_when_it_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, compiled = torch.compile, []

    def compile(function: Any, **settings: Any) -> Any:
        compiled.append((function.__name__, settings))
        return lambda *args: ("compiled", function(*args))

    text = "import torch\n@torch.compile(dynamic=False)\ndef double(x):\n    return 2 * x\nhalf = torch.compile(model=lambda x: x / 2)\n"
    (tmp_path / "compiles_at_once.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(library_patches, "_compile", compile)
    with as_real():
        import compiles_at_once  # type: ignore[import-not-found]

        assert torch.compile is own, "a dry run's own functions are not compiled later"
    assert not compiled
    assert [compiles_at_once.double(3), compiles_at_once.double(4)] == [("compiled", 6), ("compiled", 8)]
    assert compiles_at_once.half(4) == ("compiled", 2)
    assert compiled == [("double", {"dynamic": False}), ("<lambda>", {})]
