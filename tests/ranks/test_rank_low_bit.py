"""Optimizer states of few bits, of weights that are spread over ranks: the blocks are those of the whole weight."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from snugfit.core.tree import map_tree
from snugfit.kit.optimizers.low_bit import bitsandbytes_adamw, state_bytes, torchao_adamw
from snugfit.kit.sharded_tensors import sharded_like, whole
from snugfit.step.optimizer import load_optimizer
from snugfit.strategies.base import Strategy
from snugfit.strategies.fsdp import FullyShard
from tests.ranks.pool import Ranks

MIN_SIZE = 1024
WHOLE_BLOCKS, CUT = "0.weight", "1.weight"
ALL = pytest.mark.parametrize("library", ["bitsandbytes", "torchao"])


@ALL
def test_weights_are_those_of_one_rank_bit_for_bit_where_each_rank_has_whole_blocks(
    two: Ranks, library: str
) -> None:
    """Elsewhere the moments are not rounded, which comes to less than an update of the rate 0.1."""
    alone = stepped(library, shards=False)
    for found in two.run(stepped, library, True):
        assert torch.equal(found["weights"][WHOLE_BLOCKS], alone["weights"][WHOLE_BLOCKS])
        torch.testing.assert_close(found["weights"][CUT], alone["weights"][CUT], rtol=0, atol=0.15)


@ALL
@pytest.mark.parametrize("shards_first", [True, False])
def test_a_state_moves_between_shards_and_one_device(two: Ranks, library: str, shards_first: bool) -> None:
    whole_run = stepped(library, shards=False, updates=4)["weights"][WHOLE_BLOCKS]
    if shards_first:
        halted, _ = two.run(stepped, library, True)
        found = [stepped(library, False, 4, halted)]
    else:
        found = two.run(stepped, library, True, 4, stepped(library, shards=False))
    for each in found:
        assert torch.equal(each["weights"][WHOLE_BLOCKS], whole_run)


@ALL
def test_each_rank_has_its_part_of_the_states_and_cut_blocks_have_32_bits(two: Ranks, library: str) -> None:
    """Half of 4096 elements with two states, and a float32 for each of their blocks; half of 1152 elements of float32."""
    bits, block = (4, 128) if library == "torchao" else (8, 256)
    low, full = 2 * (4096 // 2) * bits // 8 + 2 * (4096 // 2 // block) * 4, 2 * (1152 // 2) * 4
    for found in two.run(stepped, library, True):
        assert found["bytes"] == low + full


def stepped(
    library: str, shards: bool, updates: int = 3, halted: dict[str, Any] | None = None
) -> dict[str, Any]:
    """What so many updates by the same gradients lead to, from the beginning or from where others have halted."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 16, bias=False), nn.Linear(64, 18, bias=False))
    (FullyShard() if shards else Strategy()).wrap(model)
    optimizer = made(library, model)
    if halted is not None:
        for name, parameter in model.named_parameters():
            parameter.data.copy_(sharded_like(parameter, halted["weights"][name]))
        load_optimizer(optimizer, copy.deepcopy(halted["state"]))  # which the ranks have in shared memory
    for update in range(0 if halted is None else 3, updates):
        for place, parameter in enumerate(model.parameters()):
            source = torch.Generator().manual_seed(10 * update + place)
            parameter.grad = sharded_like(parameter.data, torch.randn(parameter.shape, generator=source))
        optimizer.step()
    return {
        "weights": {name: whole(parameter) for name, parameter in model.named_parameters()},
        "state": map_tree(whole, optimizer.state_dict()),
        "bytes": state_bytes(optimizer),
    }


def made(library: str, model: nn.Module) -> torch.optim.Optimizer:
    groups = [{"params": list(model.parameters())}]
    if library == "bitsandbytes":
        return bitsandbytes_adamw(groups, "adamw_8bit", MIN_SIZE, lr=0.1)
    return torchao_adamw(groups, "adamw_4bit", MIN_SIZE, lr=0.1)
