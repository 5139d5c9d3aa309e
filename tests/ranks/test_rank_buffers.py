"""Buffers and first weights over ranks: all have the same, by kind, so that what is saved is what every rank goes on with."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from snugfit.errors import SettingError, SnugfitWarning
from snugfit.kit.sharded_tensors import whole
from snugfit.run.training.loop import Training
from tests.ranks.law import STRATEGIES
from tests.ranks.pool import Ranks
from tests.unit.run.training.runs import Never, make_training, points, resumed, stop_at

BOTH = pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
WINDOWS, STOP = 3, 2


class Keeping(nn.Module):
    """A net whose forward keeps something of its rows in buffers of each kind, and computes with it."""

    def __init__(self, grows: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 3)
        self.grows = grows
        self.register_buffer("running_centre", torch.zeros(2))
        self.register_buffer("memory", torch.zeros(2, 2))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mask", torch.ones(2, dtype=torch.bool))
        self.register_buffer("cache", torch.zeros(()), persistent=False)
        self.reset()

    def reset(self) -> None:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.linear.reset_parameters()

    def forward(self, inputs: Tensor) -> Tensor:
        with torch.no_grad():
            if self.training:
                self.running_centre += 0.5 * (inputs.mean(dim=0) - self.running_centre)
                self.memory = torch.stack([inputs[0].clone(), self.memory[0]])
                self.seen += 1 + inputs[:, 0].gt(0).sum()
                self.cache += dist.get_rank()
                if self.grows and dist.get_rank() == 1:
                    self.memory = torch.zeros(3, 2)
        outputs: Tensor = self.linear(
            inputs - self.running_centre - self.memory.mean(dim=0) - 0.01 * self.seen
        )
        return outputs


def training_of(folder: Path, strategy: str, **model: Any) -> Training:
    return make_training(
        folder,
        model=Keeping(**model),
        train=points(4 * WINDOWS),
        strategy=STRATEGIES[strategy](),
        shuffle=False,
        epochs=1.0,
    )


def numbers(training: Training) -> dict[str, list[Any]]:
    """Weights and saved buffers as numbers."""
    model = training.step.model
    weights = {name: whole(each).flatten().tolist() for name, each in model.named_parameters()}
    return weights | {
        name: each.flatten().tolist() for name, each in model.named_buffers() if name != "cache"
    }


@BOTH
def test_a_run_that_is_resumed_has_the_buffers_of_one_that_was_not_stopped(
    two: Ranks, tmp_path: Path, strategy: str
) -> None:
    straight = two.run(run, tmp_path / "straight", strategy, False)
    assert straight[0] == straight[1]
    assert two.run(run, tmp_path / "resumed", strategy, True) == straight


def run(folder: Path, strategy: str, stops: bool) -> dict[str, list[Any]]:
    training = training_of(folder, strategy)
    if stops:
        stop_at(training, STOP)
        training = resumed(training_of(folder, strategy))
    training.run(Never())  # type: ignore[arg-type]
    return numbers(training)


@BOTH
def test_each_kind_of_buffer_is_brought_together_in_its_own_way(two: Ranks, strategy: str) -> None:
    inputs = torch.stack([each for each, _ in points(4 * WINDOWS)[:4]])
    expected = {
        "running_centre": 0.5 * inputs.mean(dim=0),
        "memory": torch.stack([inputs[0], torch.zeros(2)]),
        "seen": 1 + inputs[:2, 0].gt(0).sum(),
        "mask": torch.ones(2, dtype=torch.bool),
    }
    first, second = two.run(after_one_window, strategy)
    for name, value in expected.items():
        torch.testing.assert_close(first["buffers"][name], value, msg=name)
        assert torch.equal(first["buffers"][name], second["buffers"][name])
    assert (first["buffers"]["cache"], second["buffers"]["cache"]) == (0, 1)  # each rank's own
    (warning, *others) = first["warnings"]
    assert warning.startswith("model: buffer 'memory' is moved by each rank's own rows.")
    assert "running_" in warning
    assert all("'seen'" in other for other in others)


def after_one_window(strategy: str) -> dict[str, Any]:
    training = training_of(Path("."), strategy)
    (window,) = training.loader.windows(0, 1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        training.step(window)
    return {
        "buffers": dict(training.step.model.named_buffers()),
        "warnings": [str(each.message) for each in caught if issubclass(each.category, SnugfitWarning)],
    }


def test_a_buffer_of_another_shape_on_another_rank_is_refused_by_name_on_both(two: Ranks) -> None:
    for message in two.run(grown):
        assert message.startswith("model: buffer 'memory' has the shapes (2, 2) and (3, 2) on the ranks")


def grown() -> str:
    training = training_of(Path("."), "ddp", grows=True)
    (window,) = training.loader.windows(0, 1)
    with pytest.raises(SettingError) as raised:
        training.step(window)
    return str(raised.value)


@BOTH
def test_all_ranks_start_with_the_weights_and_buffers_of_the_first(two: Ranks, strategy: str) -> None:
    first, second = two.run(start, strategy)
    assert first == second
    assert first["linear.weight"] == Keeping().linear.weight.flatten().tolist()
    assert first["seen"] == [0]
    assert first["mask"] == [True, True]


def start(strategy: str) -> dict[str, list[Any]]:
    model = Keeping()
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.copy_(
                torch.logical_not(tensor)
                if dist.get_rank() and tensor.dtype == torch.bool
                else tensor + dist.get_rank()
            )
    training = make_training(Path("."), model=model, strategy=STRATEGIES[strategy]())
    return numbers(training)
