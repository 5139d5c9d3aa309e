"""Adapters and few bits beside layers that are more than a weight: what is delivered is what was scored."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune
from torch.utils.data import TensorDataset

import snugfit as sf
from snugfit.errors import SettingError, SnugfitWarning


class Active(nn.Linear):
    """A linear layer of the user's own, which is none."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs).relu()


def _hooked() -> nn.Module:
    layer = nn.Linear(6, 6)
    layer.register_forward_pre_hook(lambda module, inputs: (inputs[0] * 2,))
    layer.register_forward_hook(lambda module, inputs, output: output.tanh())
    return layer


def _pruned() -> nn.Module:
    layer: nn.Module = prune.random_unstructured(nn.Linear(6, 6), "weight", 0.5)
    return layer


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "hooks": _hooked,
    "weight norm": lambda: nn.utils.weight_norm(nn.Linear(6, 6)),
    "parametrization": lambda: parametrizations.orthogonal(nn.Linear(6, 6)),
    "pruned": _pruned,
    "own forward": lambda: Active(6, 6),
}
TECHNIQUES: dict[str, Callable[[], list[Any]]] = {
    "lora": lambda: [sf.LoRA(rank=2)],
    "dora": lambda: [sf.LoRA(rank=2, dora=True)],
    "ia3": lambda: [sf.IA3()],
    "nf4": lambda: [sf.NF4(), sf.LoRA(rank=2)],
    "int8": lambda: [sf.Int8(), sf.LoRA(rank=2)],
}


def _model(kind: str) -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(LAYERS[kind](), nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3))


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("technique", TECHNIQUES)
def test_the_model_that_is_delivered_has_the_loss_that_was_scored(kind: str, technique: str) -> None:
    inputs, generator = torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
    rows = TensorDataset(
        torch.randn(24, 6, generator=inputs), torch.randint(0, 3, (24,), generator=generator)
    )
    settings: dict[str, Any] = {
        "updates": 6,
        "global_batch": 12,
        "validation": rows,
        "output": None,
        "display": None,
    }
    result = sf.train(
        _model(kind),
        rows,
        optimizer=sf.AdamW(learning_rate=0.05),
        techniques=TECHNIQUES[technique](),
        **settings,
    )
    assert result.best is not None
    scored = result.best["metrics"]["loss"]
    assert result.evaluate(rows).metrics["loss"] == pytest.approx(scored, rel=1e-4)


def test_hooks_of_a_layer_in_few_bits_are_called() -> None:
    model, rows = _model("hooks"), torch.randn(4, 6)
    expected = model(rows)
    few_bits = sf.Int8().prepare(model)(rows)
    assert (few_bits - expected).norm() < 0.1 * expected.norm()


def test_an_adapter_that_is_asked_for_beside_such_a_layer_is_refused() -> None:
    with pytest.raises(SettingError, match="'0' computes its weight anew in each forward"):
        sf.LoRA(rank=2, targets=("0",)).prepare(_model("weight norm"))
    with pytest.raises(SettingError, match="'0' has a forward of its own"):
        sf.LoRA(rank=2, targets=("0",)).prepare(_model("own forward"))


def test_layers_that_get_no_adapter_are_said_unless_they_train_in_full() -> None:
    message = "lora: '0' gets no adapter and stays frozen: '0' has a forward of its own"
    with pytest.warns(SnugfitWarning, match=message):
        sf.LoRA(rank=2).prepare(_model("own forward"))
    model = nn.Sequential(*(_model(kind) for kind in ("weight norm", "own forward")))
    with pytest.warns(SnugfitWarning, match=r"'0\.0' and 1 more get no adapters and stay frozen: .* anew"):
        sf.LoRA(rank=2).prepare(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error", SnugfitWarning)
        sf.LoRA(rank=2, head=("0",)).prepare(_model("own forward"))
