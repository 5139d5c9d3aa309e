"""Weights that only some ranks' rows reach, such as those of an expert: they get the gradient that one device gives them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor, nn

from snugfit.step.step import Step
from snugfit.techniques.learning.adamw import AdamW
from tests.ranks.law import STRATEGIES, part_of
from tests.ranks.pool import Ranks

TOLERANCE = 1e-10
WIDTH = 4


class Expert(nn.Module):
    """A weight, which no row but its own reaches."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH))

    def forward(self, rows: Tensor) -> Tensor:
        return torch.tanh(rows @ self.weight)


class Experts(nn.Module):
    """As many as there are, each for the rows of its number; those without rows are not called."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, WIDTH)
        self.experts = nn.ModuleDict({f"expert{number}": Expert() for number in range(count)})

    def forward(self, rows: Tensor, experts: Tensor) -> Tensor:
        found = self.gate(rows)
        for number, expert in enumerate(self.experts.values()):
            own = (experts == number).nonzero().flatten()
            if len(own):
                found = found.index_add(0, own, expert(rows[own]))
        return rows + found


class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList([Experts(3), Experts(3)])
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, inputs: Tensor, experts: Tensor) -> Tensor:
        for layer in self.layers:
            inputs = layer(inputs, experts)
        logits: Tensor = self.head(inputs)
        return logits


def trained(strategy: str, experts: Sequence[int], micro_batch: int) -> list[list[float] | None]:
    """The gradient of each weight after one window, and the weights after the next."""
    source = torch.Generator().manual_seed(1)
    rows = torch.randn(len(experts), WIDTH, generator=source, dtype=torch.float64)
    data = {"inputs": rows, "experts": torch.tensor(experts), "labels": (rows.sum(dim=1) > 0).long()}
    step = Step(
        Mixture().double(), AdamW(learning_rate=0.1), micro_batch=micro_batch, strategy=STRATEGIES[strategy]()
    )
    for _ in range(2):
        step(part_of(step, data))
    from snugfit.kit.sharded_tensors import whole

    weights = [whole(each).flatten().tolist() for each in step.parameters]
    gradients = [
        None if each.grad is None else whole(each.grad).flatten().tolist() for each in step.parameters
    ]
    return [*weights, *gradients]


@pytest.mark.parametrize("strategy", ["ddp", "ddp_buckets", "fsdp", "fsdp-zero2", "reduce_once"])
@pytest.mark.parametrize(
    ("experts", "micro_batch"),
    [
        ([0, 0, 1, 1], 2),  # another expert on each rank, of the same shape
        ([0, 0, 0, 0], 2),  # two that no rank reaches, which stay as they are
        ([0, 1, 1, 1, 1, 1, 0, 0], 2),  # another with each micro-batch
        ([0, 1, 2, 2], 1),
    ],
)
def test_weights_that_some_ranks_reach_are_trained_as_on_one_device(
    two: Ranks, strategy: str, experts: Sequence[int], micro_batch: int
) -> None:
    expected = trained("alone", experts, micro_batch)
    for found in two.run(trained, strategy, experts, micro_batch):
        for one, other in zip(found, expected, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                torch.testing.assert_close(
                    torch.tensor(one), torch.tensor(other), rtol=TOLERANCE, atol=TOLERANCE
                )
