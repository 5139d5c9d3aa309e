"""How often ranks exchange anything: gradients once a window where each rank has all of them, else with each micro-batch."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from snugfit.core.batch import Batch
from snugfit.step.step import Step
from snugfit.techniques.learning.adamw import AdamW
from tests.laws import problems
from tests.laws.problems import make_step
from tests.ranks.law import STRATEGIES, part_of
from tests.ranks.pool import Ranks

ADDED_UP, SCATTERED, GATHERED, FIRST_RANKS = (
    "allreduce_",
    "_reduce_scatter_base_",
    "_allgather_base_",
    "broadcast_",
)


def test_copies_add_up_their_gradients_once_a_window(two: Ranks) -> None:
    whole, in_three = (two.run(exchanges, "ddp", micro_batch) for micro_batch in (6, 2))
    assert whole == in_three
    # gradients with which of them there are, loss and weight; which buffers have moved; the first rank's of those
    assert whole == [{ADDED_UP: 2, FIRST_RANKS: 1}] * 2


def test_ddp_sends_a_bucket_and_two_messages_more_where_gradients_are_many(two: Ranks) -> None:
    for found in two.run(exchanges, "ddp_buckets", 2):
        # a bucket of gradients, which of them there are, loss and weight, which buffers have moved
        assert found == {ADDED_UP: 4, FIRST_RANKS: 1}


def test_an_update_of_a_loop_of_ones_own_is_one_exchange(two: Ranks) -> None:
    assert two.run(exchanges_of_own_loop) == [({ADDED_UP: 1}, 4 + 2)] * 2


def test_whether_padding_may_be_cut_is_asked_in_one_exchange(two: Ranks) -> None:
    assert two.run(exchanges_about_padding) == [(1, None)] * 2


def test_shards_add_up_their_gradients_and_gather_weights_with_each_micro_batch(two: Ranks) -> None:
    whole, in_three = (two.run(exchanges, "fsdp", micro_batch) for micro_batch in (6, 2))
    for one, three in zip(whole, in_three, strict=True):
        assert one[SCATTERED] == UNITS
        assert three[SCATTERED] == 3 * UNITS
        assert three[GATHERED] == 3 * one[GATHERED] >= 3 * UNITS


def test_weights_of_stage_2_are_gathered_once_a_window(two: Ranks) -> None:
    for found in two.run(exchanges, "fsdp-zero2", 2):
        assert found[GATHERED] == UNITS
        assert found[SCATTERED] == 3 * UNITS


def test_gradients_that_are_kept_whole_are_added_up_once_a_window(two: Ranks) -> None:
    for found in two.run(exchanges, "reduce_once", 2):
        assert found[SCATTERED] == UNITS


@pytest.mark.slow
def test_nodes_with_a_copy_each_add_up_their_gradients_once_a_window(four: Ranks) -> None:
    for found in four.run(exchanges, "fsdp-hybrid", 1):
        assert found[SCATTERED] == 3 * UNITS
        # and over all ranks: which weights each micro-batch has reached, loss and weight, what is not finite, which buffers have moved
        assert found[ADDED_UP] == UNITS + 3 + 3


UNITS = 1
"""The model has no numbered blocks."""


def exchanges(strategy: str, micro_batch: int) -> dict[str, int]:
    """The exchanges of the second window, of 6 rows on each rank: the first settles DDP's buckets."""
    problem = problems.main(())
    step = make_step(problem, (), micro_batch=micro_batch, strategy=STRATEGIES[strategy]())
    first, second = (part_of(step, window) for window in problem.windows(rows=(12, 12)))
    step(first)
    with Collectives() as collectives:
        step(second)
    return dict(collectives.counts)


def exchanges_of_own_loop() -> tuple[dict[str, int], int]:
    """The exchanges of an update of 4 rows on the first rank and 2 on the other, and the examples that it was of."""
    step = Step(nn.Linear(3, 2), AdamW(), strategy=STRATEGIES["ddp"]())
    rows = 4 - 2 * dist.get_rank()
    with Collectives() as collectives:
        step((torch.ones(rows, 3), torch.zeros(rows, dtype=torch.long)))
    return dict(collectives.counts), step.progress.examples


def exchanges_about_padding() -> tuple[int, bool | None]:
    """The exchanges of asking for a window in which no rank has a shorter row, and what is decided by it: nothing."""
    step = Step(nn.Linear(3, 2), AdamW(), strategy=STRATEGIES["ddp"]())
    mask = torch.ones(2, 3, dtype=torch.long)
    window = Batch.of({"input_ids": mask, "attention_mask": mask, "labels": torch.zeros(2, dtype=torch.long)})
    with Collectives() as collectives:
        step.padding.settled(step, window)
    return collectives.counts.total(), step.padding.cut


class Collectives(TorchDispatchMode):
    """Counts torch's collectives by name, those of backward hooks too."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self.counts[func._schema.name.partition("::")[2]] += 1
        return func(*args, **(kwargs or {}))
