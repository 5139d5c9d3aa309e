from __future__ import annotations

import pytest
import torch
from torch import nn

from snugfit.core.schedule import Schedule, warmup_factor, warmup_updates
from snugfit.core.technique import Context
from snugfit.errors import SettingError
from snugfit.techniques import discover

SCHEDULES = [cls for cls in discover().values() if issubclass(cls, Schedule)]


def context(total_updates: int | None) -> Context:
    return Context(nn.Linear(1, 1), torch.device("cpu"), total_updates)


def test_every_technique_that_gives_the_schedule_is_found_here() -> None:
    assert {cls.card.name for cls in SCHEDULES} == {
        name for name, cls in discover().items() if "schedule" in cls.card.seams
    }


@pytest.mark.parametrize(
    ("warmup", "total", "expected"), [(0, 10, 0), (0.25, 10, 2), (3, 10, 3), (1, 10, 1), (0.999, 10, 10)]
)
def test_warmup_is_a_number_of_updates_or_a_fraction(warmup: float, total: int, expected: int) -> None:
    assert warmup_updates(warmup, total) == expected


def test_the_first_update_of_a_warmup_moves_and_its_last_is_whole() -> None:
    assert [warmup_factor(update, 5) for update in range(6)] == [0.2, 0.4, 0.6, 0.8, 1.0, 1.0]
    assert warmup_factor(0, 0) == 1.0


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("warmup", [0, 0.3, 4, 20])
def test_a_schedule_is_pure_stays_in_range_and_survives_the_end_of_the_run(
    schedule: type[Schedule], warmup: float
) -> None:
    made, other = schedule(warmup=warmup), schedule(warmup=warmup)
    order = [5, 0, 11, 5, 9, 30, 3]
    one, two = made.seams(context(12)).schedule, other.seams(context(12)).schedule
    assert one is not None and two is not None
    factor, again = (lambda update: one(update, {}).factor), (lambda update: two(update, {}).factor)
    expected = {update: factor(update) for update in sorted(order)}
    assert [again(update) for update in order] == [expected[update] for update in order]
    assert all(0 <= value <= 1 for value in expected.values())
    assert factor(0) > 0


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("warmup", [-1, -0.1, 1.5, float("inf"), float("nan")])
def test_an_impossible_warmup_is_refused(schedule: type[Schedule], warmup: float) -> None:
    with pytest.raises(
        SettingError, match=rf"^{schedule.card.name}\.warmup: must be a whole number of updates"
    ):
        schedule(warmup=warmup)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_schedule_that_needs_the_length_of_the_run_says_so(schedule: type[Schedule]) -> None:
    with pytest.raises(SettingError, match=f"{schedule.card.name}: needs the number of updates of the run"):
        schedule(warmup=0.1).seams(context(None))
