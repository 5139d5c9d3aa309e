"""Mixtures on several ranks: the windows and the weights of one rank, also of a run that another number of ranks began."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.laws import problems
from tests.laws.mixtures import balanced, mixture, training
from tests.laws.problems import relative_error
from tests.ranks.law import STRATEGIES
from tests.ranks.pool import Ranks
from tests.unit.run.training.runs import finish, resumed, seen, stop_at

STOP = 4


def ended(folder: Path, windows: str, strategy: str, begun: bool, by_value: bool = False) -> dict[str, Any]:
    """What a run comes to, on this rank; stopped on the way and gone on with, or gone on with where others stopped."""
    read: list[tuple[int, ...]] = []
    more: dict[str, Any] = {"data": balanced(mixture())} if by_value else {}
    if not begun:
        run = training(folder, windows, strategy=STRATEGIES[strategy](), **more)
        stop_at(run, STOP)
        read = seen(run)
    run = resumed(training(folder, windows, strategy=STRATEGIES[strategy](), **more))
    metrics = finish(run).last["metrics"]
    return {"ids": read + seen(run), "weights": problems.weights(run.step), "metrics": metrics}


@pytest.mark.slow
@pytest.mark.parametrize("by_value", [False, True])
@pytest.mark.parametrize("windows", ["examples", "tokens"])
def test_two_ranks_read_what_one_reads_whoever_began(
    two: Ranks, tmp_path: Path, windows: str, by_value: bool
) -> None:
    data = balanced(mixture()) if by_value else mixture()
    whole = training(tmp_path / "whole", windows, data=data)
    metrics = finish(whole).last["metrics"]
    assert [*metrics] == ["loss", "loss/s0", "loss/s1", "loss/s2"]
    one = training(tmp_path / "one", windows, data=data)
    stop_at(one, STOP)
    shutil.copytree(tmp_path / "one", tmp_path / "moved")
    expected, rest = problems.weights(whole.step), seen(whole)[STOP:]
    own = two.run(ended, tmp_path / "two", windows, "ddp", False, by_value)
    moved = two.run(ended, tmp_path / "moved", windows, "ddp", True, by_value)
    for ranks, read in ((own, seen(whole)), (moved, rest)):
        for rank in ranks:
            assert relative_error(rank["weights"], expected) <= 1e-10
            assert rank["metrics"] == pytest.approx(metrics, rel=1e-9)
        for first, second, window in zip(*(rank["ids"] for rank in ranks), read, strict=True):
            assert set(first) | set(second) == set(window)
