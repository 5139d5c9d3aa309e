"""Autocast over shards: no 16-bit copy of gathered weights stays from forward to backward, weights that are only cast are gathered in
16 bits, and the update is that of one device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from snugfit.kit.sharded_tensors import whole
from snugfit.step.step import Step
from snugfit.strategies import gathers
from snugfit.system.allocation_counter import AllocatedBytes
from snugfit.techniques.learning.sgd import SGD
from tests.laws.problems import relative_error
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
        self.saved_bytes: list[int] = []
        self.allocated: AllocatedBytes | None = None

    def forward(self, hidden: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            for block in self.blocks:
                hidden = block(hidden)
        if self.allocated is not None:
            self.saved_bytes.append(self.allocated.history[-1])
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
            assert found["saved_bytes"] < COPIES / 2


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
    return {"weights": weights, "saved_bytes": model.saved_bytes[-1]}


WINDOWS = 4
"""The first one shows that there is autocast, the second one is watched, from then on less is sent."""
CAST, AS_THEY_ARE = WIDTH * WIDTH + WIDTH, 2 * WIDTH
"""Numbers of a block that only its product reads, and those of its norm."""


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["fsdp", "fsdp-zero2", "fsdp-offload"])
def test_weights_that_are_only_cast_are_gathered_in_16_bits_with_the_bits_of_whole_gathers(
    two: Ranks, strategy: str
) -> None:
    whole_gathers = two.run(gathered, strategy, False)
    for found, expected in zip(two.run(gathered, strategy, True), whole_gathers, strict=True):
        assert found["weights"].keys() == expected["weights"].keys()
        assert all(torch.equal(each, expected["weights"][name]) for name, each in found["weights"].items())
        assert found["bytes"][0] == expected["bytes"][0]
        less, all_ = 2 * CAST + 4 * AS_THEY_ARE, 4 * CAST + 4 * AS_THEY_ARE
        assert found["bytes"][-1] * all_ == expected["bytes"][-1] * less > 0


def gathered(strategy: str, rounded: bool) -> dict[str, Any]:
    """The weights after some updates, and the bytes that were gathered in each."""
    model = Blocks()
    strategy_of_ranks = STRATEGIES[strategy]()
    step = Step(model, SGD(learning_rate=0.1), "mse", micro_batch=1, strategy=strategy_of_ranks)
    if not rounded:
        for each in model.modules():
            if hasattr(each, "set_custom_all_gather"):
                each.set_custom_all_gather(gathers.RoundedGather(list, 2))
    inputs = torch.linspace(-1, 1, ROWS * WIDTH).view(ROWS, WIDTH).sin()
    sizes = []
    for window in range(WINDOWS):
        with GatheredBytes() as bytes_:
            step(part_of(step, (inputs, (inputs + window).cos())))
        sizes.append(bytes_.total)
    return {"weights": {name: whole(each) for name, each in model.named_parameters()}, "bytes": sizes}


class GatheredBytes(TorchDispatchMode):
    """Counts the bytes that gathers of torch give."""

    def __init__(self) -> None:
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "_allgather_base_" in str(func):
            self.total += args[0].nbytes
        return func(*args, **(kwargs or {}))
