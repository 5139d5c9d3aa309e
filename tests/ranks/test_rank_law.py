"""Rank: any number of ranks gives the update of one, with uneven rows and tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from snugfit.core.batch import Batch, Share, shared_out
from snugfit.core.technique import Technique
from snugfit.strategies.base import Strategy
from snugfit.strategies.ddp import DataParallel
from snugfit.strategies.fsdp import FullyShard
from snugfit.training.step import Step
from tests.laws import problems
from tests.laws.problems import make_step, relative_error
from tests.ranks.pool import Ranks

STRATEGIES: dict[str, Callable[[], Strategy]] = {"ddp": DataParallel, "fsdp": FullyShard}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("techniques", problems.singles(), ids=problems.name_of)
def test_two_ranks_give_the_update_of_one(
    two: Ranks, techniques: tuple[Technique, ...], strategy: str
) -> None:
    agree_on_ranks(two, problems.main, techniques, strategy, micro_batch=2)


def agree_on_ranks(
    ranks: Ranks,
    make: problems.Maker,
    techniques: tuple[Technique, ...],
    strategy: str,
    micro_batch: int,
    rows: Sequence[int] = problems.WINDOW_ROWS,
) -> None:
    problem = make(techniques)
    alone = trajectory(make, techniques, Strategy, micro_batch, rows)
    first, *others = ranks.run(on_a_rank, make, techniques, strategy, micro_batch, rows)
    assert all(told(other) == told(first) for other in others)
    for number, (found, expected) in enumerate(zip(first, alone, strict=True)):
        where = f"window {number}"
        for kind in ("gradients", "weights", "evaluated"):
            error = relative_error(found[kind], expected[kind], floor=problem.floor)
            assert error <= problem.tolerance, f"{where}: {kind} are {error:.2g} away"
        assert told([found])[0] == pytest.approx(told([expected])[0], rel=problem.tolerance), where


def told(trajectory: list[dict[str, Any]]) -> list[dict[str, float]]:
    """The numbers that each window's result has."""
    return [found["numbers"] for found in trajectory]


def on_a_rank(
    make: problems.Maker,
    techniques: tuple[Technique, ...],
    strategy: str,
    micro_batch: int,
    rows: Sequence[int],
) -> list[dict[str, Any]]:
    return trajectory(make, techniques, STRATEGIES[strategy], micro_batch, rows)


def trajectory(
    make: problems.Maker,
    techniques: tuple[Technique, ...],
    strategy: Callable[[], Strategy],
    micro_batch: int,
    rows: Sequence[int],
) -> list[dict[str, Any]]:
    """What each window leaves behind, on this rank of those there are."""
    problem = make(techniques)
    step = make_step(problem, techniques, micro_batch=micro_batch, strategy=strategy())
    return [seen(step, part_of(step, window)) for window in problem.windows(rows=rows)]


def part_of(step: Step, window: Any) -> Batch:
    """The rows of a window that this rank has."""
    batch, strategy = Batch.of(window), step.strategy
    if strategy.world_size == 1:
        return batch
    parts = shared_out(batch.rows, strategy.world_size, step.together)
    own = parts[strategy.rank] or range(1)
    return replace(batch.select(own), share=Share(tuple(map(len, parts)), strategy.rank))


def seen(step: Step, window: Batch) -> dict[str, Any]:
    result = step(window)
    assert result.applied
    numbers = {"loss": result.loss, "weight": result.weight, "examples": step.progress.examples}
    return {
        "numbers": numbers | {name: float(problems.whole(value)) for name, value in result.metrics.items()},
        "gradients": problems.traces(step),
        "weights": problems.weights(step),
        "evaluated": problems.evaluated_weights(step),
    }
