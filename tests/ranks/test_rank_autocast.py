"""Autocast over shards: no 16-bit copy of gathered weights stays from forward to backward, and the update is that of one device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from snugfit.core.allocation import AllocatedBytes
from snugfit.techniques.learning.sgd import SGD
from snugfit.training.step import Step
from tests.laws.problems import relative_error, whole
from tests.ranks.law import STRATEGIES, part_of
from tests.ranks.pool import Ranks

WIDTH, BLOCKS, ROWS = 64, 6, 4
COPIES = 2 * WIDTH * WIDTH * BLOCKS
"""Bytes of the blocks' weights in 16 bit."""
ROUNDING = 2e-2
"""Each rank rounds the gradient of its own rows to bf16."""


class Blocks(nn.Module):
    """Numbered blocks, each of which fsdp gathers by itself, with norms between them."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.blocks = nn.ModuleList(
                [
                    nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.Tanh())
                    for _ in range(BLOCKS)
                ]
            )
        self.kept: list[int] = []
        self.allocated: AllocatedBytes | None = None

    def forward(self, hidden: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for block in self.blocks:
                hidden = block(hidden)
        if self.allocated is not None:
            self.kept.append(self.allocated.history[-1])
        return hidden.float()


@pytest.mark.parametrize("strategy", ["fsdp", "fsdp-zero2"])
def test_shards_under_autocast_keep_no_copy_of_the_weights_and_give_the_update_of_one_device(
    two: Ranks, strategy: str
) -> None:
    alone = updated("alone")
    for found in two.run(updated, strategy):
        assert relative_error(found["weights"], alone["weights"]) <= ROUNDING
        # from the first block on, what is kept of each is what its rows have come to
        if strategy == "fsdp":
            assert found["kept"] < COPIES / 2


def updated(strategy: str) -> dict[str, Any]:
    """What one update has made of the weights, and the bytes that are there between forward and backward of another one."""
    model = Blocks()
    start = {name: each.detach().clone() for name, each in model.named_parameters()}
    step = Step(model, SGD(learning_rate=0.1), "mse", strategy=STRATEGIES[strategy]())
    inputs = torch.linspace(-1, 1, ROWS * WIDTH).view(ROWS, WIDTH).sin()
    window = (inputs, inputs.cos())
    step(part_of(step, window))
    weights = {name: whole(each) - start[name] for name, each in model.named_parameters()}
    with AllocatedBytes(torch.device("cpu")) as model.allocated:
        step(part_of(step, window))
    model.allocated = None
    return {"weights": weights, "kept": model.kept[-1]}
