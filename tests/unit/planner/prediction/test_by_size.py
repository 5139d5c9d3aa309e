"""Predictions for every micro-batch, from runs of few."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from snugfit.core.job import Plan
from snugfit.planner.cost.records import Parts, Phase
from snugfit.planner.devices.device import Machine
from snugfit.planner.devices.hardware import uncalibrated
from snugfit.planner.prediction.by_size import repeated
from snugfit.planner.prediction.depth import Fewer
from snugfit.planner.prediction.extrapolate import NotLinear
from snugfit.planner.prediction.peak_and_time import Run
from snugfit.planner.prediction.plan_needs import Planner
from snugfit.planner.trace.recorder import OutOfTime
from snugfit.planner.trace.segments import ROLES, Key, Segment
from snugfit.techniques.learning.adamw import AdamW
from snugfit.techniques.learning.freeze import Freeze
from snugfit.techniques.placement.optimizer_in_backward import OptimizerInBackward
from snugfit.techniques.placement.recompute import Recompute
from tests.unit.planner.dry import subject_of

ROWS = 32
SIZES = (16, 8, 4, 2, 1)


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(*(nn.Linear(64, 64) for _ in range(18)))
        self.head = nn.Linear(64, 5)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(rows))


@pytest.fixture(scope="module")
def planner() -> Planner:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(10)), nn.Linear(64, 5))
    data = torch.randn(ROWS, 64), torch.zeros(ROWS, dtype=torch.long)
    cpu = replace(uncalibrated("cpu"), rates={})
    return Planner(subject_of(model, data, (AdamW(),)), Machine(cpu, cpu, baseline=0))


@pytest.mark.slow
@pytest.mark.parametrize("techniques", [(AdamW(),), (AdamW(), Recompute())])
def test_between_two_sizes_a_plan_needs_what_a_run_of_it_tells(planner: Planner, techniques) -> None:
    sized = planner.by_size(Plan(), techniques)
    sized.traced(SIZES[0])
    sized.traced(SIZES[-1])
    for size in SIZES[1:-1]:
        found = sized.between(size)
        run = planner.predict(Plan(micro_batch=size), techniques, rough=True)
        assert found is not None
        assert run.peak_bytes <= found.peak_bytes <= 1.02 * run.peak_bytes, "a line above what bends upwards"
        assert found.seconds_per_update == pytest.approx(run.seconds_per_update, rel=0.05)
        assert found.flops_per_update == run.flops_per_update


def test_the_step_takes_as_long_in_every_micro_batch(planner: Planner) -> None:
    sized = planner.by_size(Plan(), (AdamW(),))
    few, many = (sized.traced(size).step_seconds for size in (ROWS, SIZES[-1]))
    assert few == many > 0


@pytest.mark.slow
@pytest.mark.parametrize("techniques", [(AdamW(),), (AdamW(), OptimizerInBackward())])
def test_no_update_is_shorter_than_its_arithmetic_and_what_its_step_takes_in_other_micro_batches(
    planner: Planner, techniques
) -> None:
    sized = planner.by_size(Plan(), techniques)
    found = [sized.traced(size) for size in (ROWS, *SIZES)]
    arithmetic = max(each.flops_per_update for each in found) / planner.machine.device.flops["float32"]
    step = max(each.step_seconds for each in found)
    assert step > 0
    assert all(arithmetic + step < each.seconds_per_update for each in found)


@pytest.mark.parametrize(
    ("run", "wanted", "times"),
    [(2, 5, [1, 4]), (2, 2, [1, 1]), (3, 5, [1, 3, 1]), (3, 3, [1, 1, 1]), (3, 2, [1, 0, 1])],
)
def test_the_second_micro_batch_stands_for_those_after_the_first_that_are_like_it(
    run: int, wanted: int, times: list[int]
) -> None:
    peak, costs = np.zeros(len(ROLES), dtype=np.int64), np.zeros(5)
    pieces = [
        Segment(Key(0, Phase.FORWARD, 0, number, 0, -1), peak, 0, "", "", costs, 0, 0)
        for number in range(run)
    ]
    told = repeated(Run(pieces, 1.0, (), Parts(), 1.0), wanted)
    assert [each.times for each in told.segments] == times


def test_what_is_done_after_the_last_micro_batch_is_done_once() -> None:
    peak = np.zeros(len(ROLES), dtype=np.int64)
    pieces = [
        Segment(Key(0, phase, 0, number, 0, -1), peak, 0, "", "", np.full(5, cost), 0, 0)
        for number, after in enumerate((0.25, 3.0))
        for phase, cost in ((Phase.BACKWARD, 1.0), (Phase.PASS, after))
    ]
    told = repeated(Run(pieces, 1.0, (), Parts(), 1.0), 4)
    assert sum(float(each.costs[0]) * each.times for each in told.segments) == 4 * 1.0 + 3 * 0.25 + 3.0


def test_blocks_that_a_pattern_of_numbers_freezes_are_frozen_by_their_own_numbers() -> None:
    """A model of few blocks has other numbers: ten frozen of 18 were taken for all, and a third of the memory was left out."""
    model = Deep()
    data = torch.randn(8, 64), torch.zeros(8, dtype=torch.long)
    techniques = AdamW(), Freeze(patterns=("body.[0-9]",))
    cpu = replace(uncalibrated("cpu"), rates={})
    told, whole = (
        Planner(subject_of(model, data, techniques), Machine(cpu, cpu, baseline=0), whole=whole)
        for whole in (False, True)
    )
    assert told.lists
    assert told.predict(Plan(), techniques) == whole.predict(Plan(), techniques)


@pytest.mark.slow
def test_a_step_in_the_last_backward_is_counted_once_in_micro_batches_of_every_size(planner: Planner) -> None:
    techniques = AdamW(), OptimizerInBackward()
    sized = planner.by_size(Plan(), techniques)
    for size in (16, 2):
        sized.traced(size)
    for size in (
        16,
        8,
        2,
    ):  # windows of two micro-batches, of four between those that were run, and of sixteen
        found, exact = sized.between(size), planner.predict(Plan(micro_batch=size), techniques)
        assert found is not None
        assert found.seconds_per_update == pytest.approx(exact.seconds_per_update, rel=0.05)
        assert found.flops_per_update == exact.flops_per_update
        assert found.peak_bytes == pytest.approx(exact.peak_bytes, rel=0.02)


def test_a_size_that_was_run_is_told_as_it_is_and_run_once(planner: Planner) -> None:
    sized = planner.by_size(Plan(), (AdamW(),))
    runs: list[int] = []
    whole = sized.run
    sized.run = lambda size: (runs.append(size), whole(size))[1]
    assert sized.traced(8) == sized.traced(8) == sized.between(8)
    assert runs == [8]


def test_a_plan_that_is_run_whole_is_not_run_again_to_confirm_it(planner: Planner) -> None:
    runs: list[object] = []
    whole = planner.run
    planner.run = lambda *asked: (runs.append(asked), whole(*asked))[1]  # type: ignore[method-assign]
    rough = planner.predict(Plan(), (AdamW(),), rough=True)
    assert planner.predict(Plan(), (AdamW(),)) == rough and len(runs) == 1
    planner.predict(Plan(), (AdamW(learning_rate=0.5),))
    assert len(runs) == 2


def test_when_it_is_late_nothing_more_is_run_than_was_already(planner: Planner) -> None:
    plan = Plan(micro_batch=4)
    rough = planner.predict(plan, (AdamW(),), rough=True)
    assert planner.predict(plan, (AdamW(),), rough=True, late=lambda: True) == rough
    with pytest.raises(OutOfTime):
        planner.predict(plan, (AdamW(),), late=lambda: True)
    assert planner.predict(plan, (AdamW(),)).peak_bytes >= rough.peak_bytes


class Busy:
    """A second process whose answers come late."""

    closed = False

    def ask(self, *calls: object) -> None:
        assert calls

    def answers(self) -> list[None]:
        assert self.closed, "its answers are waited for"
        return []

    def close(self) -> None:
        self.closed = True


def test_a_run_ends_in_its_midst_when_it_gets_late(planner: Planner) -> None:
    asked: list[bool] = []

    def late() -> bool:
        asked.append(True)
        return len(asked) > 5

    with pytest.raises(OutOfTime):
        planner.predict(Plan(micro_batch=1), (AdamW(),), late=late)
    assert len(asked) == 6 and planner.predict(Plan(micro_batch=1), (AdamW(),)).peak_bytes


def test_when_it_is_late_nobody_waits_for_the_second_process(planner: Planner) -> None:
    planner.second = Busy()  # type: ignore[assignment]
    with pytest.raises(OutOfTime):
        planner.predict(Plan(micro_batch=1), (AdamW(),), late=lambda: True)


def test_beyond_what_was_run_nothing_is_told(planner: Planner) -> None:
    """A window that is taken whole meets no gradients of passes before it."""
    sized = planner.by_size(Plan(), (AdamW(),))
    sized.traced(ROWS)
    sized.traced(4)
    assert sized.between(8) is None and sized.between(2) is None


def test_as_many_blocks_are_run_as_a_plan_of_fewer_placements_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(24)))
    cpu = replace(uncalibrated("cpu"), rates={})
    data = torch.randn(4, 8), torch.zeros(4, dtype=torch.long)
    planner = Planner(subject_of(model, data, (AdamW(),)), Machine(cpu, cpu, baseline=0))
    bases: list[int | None] = []

    def carried_on(plan: Plan, techniques: object, base: Fewer | None, few: int | None, rough: bool) -> Run:
        bases.append(None if base is None else base.depths[0])
        if bases[-1] == 3 and Recompute() in techniques:  # type: ignore[operator]
            raise NotLinear("one block more")
        return Run([], 1.0, (), Parts(), 1.0)

    monkeypatch.setattr(planner, "_carried_on", carried_on)
    for placements in ((Recompute(),), (Recompute(), OptimizerInBackward()), (OptimizerInBackward(),)):
        planner.run_of(Plan(micro_batch=4), (AdamW(), *placements), rough=True)
    assert bases == [3, 4, 4, 3]
