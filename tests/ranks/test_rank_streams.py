"""Streams on several ranks: the windows and the weights of one rank, also of a run that another number of ranks began."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.laws import problems
from tests.laws.problems import relative_error
from tests.laws.streams import training
from tests.ranks.law import STRATEGIES
from tests.ranks.pool import Ranks
from tests.unit.run.training.runs import finish, resumed, seen, stop_at

STOP = 4


def ended(folder: Path, begun: bool) -> dict[str, Any]:
    """What a run comes to, on this rank; stopped on the way and gone on with, or gone on with where others stopped."""
    read: list[tuple[int, ...]] = []
    if not begun:
        run = training(folder, strategy=STRATEGIES["ddp"]())
        stop_at(run, STOP)
        read = seen(run)
    run = resumed(training(folder, strategy=STRATEGIES["ddp"]()))
    metrics = finish(run).last["metrics"]
    return {"ids": read + seen(run), "weights": problems.weights(run.step), "metrics": metrics}


@pytest.mark.slow
def test_two_ranks_read_of_a_stream_what_one_reads_whoever_began(two: Ranks, tmp_path: Path) -> None:
    whole = training(tmp_path / "whole")
    metrics = finish(whole).last["metrics"]
    one = training(tmp_path / "one")
    stop_at(one, STOP)
    shutil.copytree(tmp_path / "one", tmp_path / "moved")
    expected = problems.weights(whole.step)
    own = two.run(ended, tmp_path / "two", False)
    moved = two.run(ended, tmp_path / "moved", True)
    for ranks, windows in ((own, seen(whole)), (moved, seen(whole)[STOP:])):
        for rank in ranks:
            assert relative_error(rank["weights"], expected) <= 1e-12
            assert rank["metrics"] == pytest.approx(metrics, rel=1e-9)
        for first, second, window in zip(*(rank["ids"] for rank in ranks), windows, strict=True):
            assert sorted(first + second) == sorted(window)
