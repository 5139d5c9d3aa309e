"""The processes that run the tests on ranks: one that ends costs its own test, and no later one."""

from __future__ import annotations

import os
from pathlib import Path

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


@pytest.mark.slow
def test_the_first_rank_that_is_killed_is_told_and_its_function_run_again_and_the_second_fails(
    tmp_path: Path,
) -> None:
    ranks = Ranks(2)
    try:
        with pytest.warns(UserWarning, match="(?s)run again on new ranks.*killed_once.*exit code -6"):
            assert ranks.run(killed_once, tmp_path / "once") == [0, 1]
        with pytest.raises(AssertionError, match="rank 1: the process has ended, with exit code -6"):
            ranks.run(killed_once, tmp_path / "twice")
    finally:
        ranks.end()


def killed_once(mark: Path) -> int:
    """The rank; the second one is killed by a signal at the first call with a mark."""
    if dist.get_rank() == 1 and not mark.exists():
        mark.touch()
        os.abort()
    dist.barrier()
    return dist.get_rank()


def added() -> tuple[int, int]:
    """The sum of all ranks' numbers, and this process."""
    total = torch.tensor(dist.get_rank())
    dist.all_reduce(total)
    return int(total), os.getpid()


def ended() -> None:
    """Nothing on the first rank; the end of the second one."""
    if dist.get_rank() == 1:
        os._exit(3)
