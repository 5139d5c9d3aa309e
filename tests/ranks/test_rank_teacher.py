"""A teacher whose features are of another width teaches several ranks as one, and its map is one on all of them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from snugfit.kit.sharded_tensors import whole
from snugfit.step.step import Step
from snugfit.techniques.learning.distillation import Distillation
from snugfit.techniques.learning.sgd import SGD
from tests.laws.problems import relative_error
from tests.ranks.law import STRATEGIES, part_of
from tests.ranks.pool import Ranks
from tests.unit.techniques.test_distillation import Net, made, window

ROWS = (7, 1)
"""Of the second window rank 1 has no row."""


def taught(strategy: str) -> tuple[dict[str, torch.Tensor], list[float]]:
    """The weights behind two updates, and the losses."""
    student: nn.Module = made(Net)
    technique = Distillation(
        teacher=made(Net, 9, seed=1),  # type: ignore[arg-type]
        features={"first": "first"},
        projections={"first": (6, 9)},
    )
    step = Step(
        student,
        SGD(learning_rate=0.1),
        techniques=[technique],
        micro_batch=2,
        strategy=STRATEGIES[strategy](),
    )
    losses = [
        step(part_of(step, {name: each[:rows] for name, each in window().items()})).loss for rows in ROWS
    ]
    return {name: whole(each) for name, each in step.model.named_parameters()}, losses


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_ranks_learn_the_map_that_one_learns(two: Ranks, strategy: str) -> None:
    weights, losses = taught("alone")
    assert "distillation_projections.of_first.weight" in weights
    for of_rank, its_losses in two.run(taught, strategy):
        assert its_losses == pytest.approx(losses, rel=1e-10)
        assert relative_error(of_rank, weights) <= 1e-10
