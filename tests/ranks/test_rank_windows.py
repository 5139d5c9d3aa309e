"""Windows that differ in size on several ranks: the same windows, and the weights of one rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.laws import problems
from tests.laws.problems import relative_error
from tests.laws.windows import SIZES, training
from tests.ranks.law import STRATEGIES
from tests.ranks.pool import Ranks
from tests.unit.run.training.runs import finish, resumed, seen, stop_at

STOP = 4


def whole(folder: Path, sizes: str, strategy: str, stop: int | None = None) -> dict[str, Any]:
    """What a run comes to, on this rank; stopped on the way and gone on with, where that is asked for."""
    made = {"micro_batch": 2, "strategy": STRATEGIES[strategy]()}
    run = training(folder, sizes, **made)
    windows: list[tuple[int, ...]] = []
    if stop is not None:
        stop_at(run, stop)
        windows = seen(run)
        run = resumed(training(folder, sizes, **made))
    result = finish(run)
    return {"updates": result.updates, "ids": windows + seen(run), "weights": problems.weights(run.step)}


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("sizes", SIZES)
def test_two_ranks_have_the_windows_and_the_weights_of_one(
    two: Ranks, tmp_path: Path, sizes: str, strategy: str
) -> None:
    alone = whole(tmp_path / "alone", sizes, "alone")
    first, second = two.run(whole, tmp_path / "shared", sizes, strategy, STOP)
    for part in (first, second):
        assert part["updates"] == alone["updates"]
        assert relative_error(part["weights"], alone["weights"]) <= 1e-10
    for one, other, window in zip(first["ids"], second["ids"], alone["ids"], strict=True):
        assert set(one) | set(other) == set(window)  # a rank without rows of its own has one of the first's
