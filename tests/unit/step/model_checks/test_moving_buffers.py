"""A run in micro-batches says that their size is learned from, where a model's buffers make it so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import snugfit as sf


class Centred(nn.Module):
    """A model that computes with a mean which each forward moves."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("calls", torch.tensor(0))
        self.register_buffer("kept", torch.ones(4))

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
            self.mean = 0.9 * self.mean + 0.1 * inputs.detach().mean(0)
        return self.layer((inputs - self.mean) * self.kept)


def _normed() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))


def _frozen() -> nn.Module:
    model = _normed()
    model.train = lambda mode=True: nn.Module.train(model, False)  # type: ignore[method-assign]
    return model


def _lines(model: nn.Module, micro_batch: int | None, techniques: Any = ()) -> list[str]:
    events: list[dict[str, Any]] = []
    data = TensorDataset(torch.randn(16, 4), torch.arange(16) % 3)
    settings: dict[str, Any] = {"updates": 2, "global_batch": 8, "output": None, "display": events.append}
    sf.train(model, data, micro_batch=micro_batch, techniques=techniques, **settings)
    return [str(each.get("message")) for each in events if "part of what is learned" in str(each)]


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (Centred, "each forward moves the buffer 'mean', and micro-batches are as many forwards"),
        (_normed, "the model has batch norm, whose statistics are those of a micro-batch"),
    ],
)
def test_a_run_in_micro_batches_says_that_their_size_is_learned_from(
    made: Callable[[], nn.Module], said: str
) -> None:
    (line,) = _lines(made(), 4)
    assert line.startswith(said)
    assert ("ghost_batch_norm" in line) is (made is _normed) and "windows whole" in line
    assert _lines(made(), None) == []


def test_nothing_is_said_of_statistics_that_stay_or_are_of_groups() -> None:
    assert _lines(_frozen(), 4) == []
    assert _lines(_normed(), 4, [sf.GhostBatchNorm(4)]) == []
    assert _lines(nn.Linear(4, 3), 4) == []
