"""What the tests on ranks share: the same windows on any number of ranks, and what each leaves behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from snugfit.core.batch import Batch, Share, shared_out
from snugfit.core.job import STRATEGY_NAMES, Plan
from snugfit.core.technique import Stage, Technique
from snugfit.kit.sharded_tensors import whole
from snugfit.step.step import Step
from snugfit.strategies.base import Strategy
from snugfit.strategies.ddp import DataParallel
from snugfit.strategies.fsdp import FullyShard
from snugfit.strategies.registry import strategy_of
from snugfit.system.processes import World
from tests.laws import problems
from tests.laws.problems import make_step, relative_error
from tests.ranks.pool import Ranks


def of_run(name: str) -> Strategy:
    """The strategy of this name as a run makes it, for ranks of which two each are on a node."""
    rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    return strategy_of(Plan(strategy=name, devices=size), World(rank, size, local_rank=rank % 2))


STRATEGIES: dict[str, Callable[[], Strategy]] = {
    "alone": Strategy,
    **{name: partial(of_run, name) for name in STRATEGY_NAMES},
    "ddp_buckets": lambda: DataParallel(at_once_bytes=0),
    "ddp_bucket_view": lambda: DataParallel(bucket_view=True),
    "reduce_once": lambda: FullyShard(reduce_each=False),
    "computes_in_bf16": lambda: FullyShard(computes_in=torch.bfloat16),
}


def allowed(techniques: Sequence[Technique], strategy: str) -> bool:
    """Whether devices that share a model in this way can have all of them."""
    sharing = (DataParallel if strategy.startswith("ddp") else FullyShard).sharing
    return sharing is not None and not any(each.refused_on(sharing) for each in techniques)


def agree_on_ranks(
    ranks: Ranks,
    make: problems.Maker,
    techniques: tuple[Technique, ...],
    strategy: str,
    micro_batch: int = 2,
    rows: Sequence[int] = problems.WINDOW_ROWS,
    tolerance: float | None = None,
) -> None:
    """Each window's gradient, weights and result are those of one rank, but for rounding, and the same on all ranks."""
    problem = across(make, techniques)
    tolerance = problem.tolerance if tolerance is None else tolerance
    if any(each.card.precision for each in techniques):
        # of numbers in 16 bits the last one decides whether a ReLU near zero is open: a row of a gradient more or less
        tolerance *= 2
    alone = trajectory(make, techniques, "alone", micro_batch, rows)
    first, *others = ranks.run(trajectory, make, techniques, strategy, micro_batch, rows)
    stages = {stage for each in techniques for stage in each.card.stages}
    if {Stage.SELECT, Stage.NARROW} <= stages:
        # weights are rounded by chance, so that the last bit of a sum tells which: from then on another example may be the hardest
        first, alone = first[:1], alone[:1]
    for number, (found, expected) in enumerate(zip(first, alone, strict=True)):
        where = f"window {number}"
        assert all(other[number]["numbers"] == found["numbers"] for other in others), where
        for kind in ("gradients", "weights", "evaluated"):
            error = relative_error(found[kind], expected[kind], floor=problem.floor)
            assert error <= tolerance, f"{where}: {kind} are {error:.2g} away"
        assert found["numbers"] == pytest.approx(expected["numbers"], rel=tolerance), where


def across(make: problems.Maker, techniques: Sequence[Technique]) -> problems.Problem:
    """The problem; where a technique rounds what is exchanged, with how far ranks are from one then. A rounding is of what each rank
    has, and may be of more than the sum."""
    problem = make(techniques)
    within = [getattr(problems.oracle_of(each), "ON_RANKS_WITHIN", 0.0) for each in techniques]
    if not any(within):
        return problem
    return replace(problem, tolerance=max(problem.tolerance, *within), floor=max(problem.floor, 0.2))


def trajectory(
    make: problems.Maker,
    techniques: tuple[Technique, ...],
    strategy: str,
    micro_batch: int,
    rows: Sequence[int],
) -> list[dict[str, Any]]:
    """What each window leaves behind, on this rank of those there are."""
    problem = make(techniques)
    step = make_step(problem, techniques, micro_batch=micro_batch, strategy=STRATEGIES[strategy]())
    return [_left_by(step, part_of(step, window)) for window in problem.windows(rows=rows)]


def reader_in_float32(techniques: Sequence[Technique]) -> problems.Problem:
    """The transformer, in the type that is rounded to 16 bits; a bias whose gradient is rounding alone does not count."""
    return replace(problems.reader(techniques), dtype=torch.float32, floor=0.1)


def in_whole_blocks(techniques: Sequence[Technique]) -> problems.Maker:
    """The main problem; a wide one where blocks of the states are to lie in the rows of one rank."""
    blocks = block_of(techniques) is not None
    return problems.wide_reader if blocks and not problems.takes_images(techniques) else problems.main


def block_of(techniques: Sequence[Technique]) -> int | None:
    """Elements of a block of the optimizer's states; None where they do not lie in blocks."""
    oracles = [problems.oracle_of(each) for each in techniques if "optimizer" in each.card.seams]
    return next((oracle.BLOCK for oracle in oracles if hasattr(oracle, "BLOCK")), None)


def part_of(step: Step, window: Any) -> Batch:
    """The rows of a window that this rank has."""
    batch, strategy = Batch.of(window), step.strategy
    if strategy.world_size == 1:
        return batch
    parts = shared_out(batch.rows, strategy.world_size, step.together)
    own = parts[strategy.rank] or range(1)
    return replace(batch.select(own), share=Share(tuple(map(len, parts)), strategy.rank))


def _left_by(step: Step, window: Batch) -> dict[str, Any]:
    result = step(window)
    assert result.applied
    numbers = {"loss": result.loss, "weight": result.weight, "examples": step.progress.examples}
    return {
        "numbers": numbers | {name: float(whole(value)) for name, value in result.metrics.items()},
        "gradients": problems.traces(step),
        "weights": problems.weights(step),
        "evaluated": problems.evaluated_weights(step),
    }
