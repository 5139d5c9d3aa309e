"""The processes that run the tests on ranks: one that ends costs its own test, and no later one."""

from __future__ import annotations

import os

import pytest
import torch
import torch.distributed as dist

from tests.ranks.pool import Ranks


@pytest.mark.slow
def test_a_rank_that_has_ended_is_named_and_the_next_function_meets_new_ranks(two: Ranks) -> None:
    before = two.run(added)
    with pytest.raises(AssertionError, match="rank 1: the process has ended"):
        two.run(ended)
    after = two.run(added)
    assert [total for total, _ in after] == [total for total, _ in before] == [1, 1]
    assert {process for _, process in after}.isdisjoint({process for _, process in before})


def added() -> tuple[int, int]:
    """The sum of all ranks' numbers, and this process."""
    total = torch.tensor(dist.get_rank())
    dist.all_reduce(total)
    return int(total), os.getpid()


def ended() -> None:
    """Nothing on the first rank; the end of the second one."""
    if dist.get_rank() == 1:
        os._exit(3)
