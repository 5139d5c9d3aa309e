from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from snugfit.core.progress import number_of_updates
from snugfit.core.schedule import Schedule, WarmedUp, warmup_factor
from snugfit.core.technique import Context, Rate
from snugfit.errors import SettingError, SnugfitWarning
from snugfit.techniques import discover
from snugfit.techniques.learning.cosine import Cosine
from snugfit.techniques.learning.linear import Linear
from snugfit.techniques.learning.polynomial import Polynomial
from snugfit.techniques.learning.wsd import WSD

SCHEDULES = [cls for cls in discover().values() if "schedule" in cls.card.seams]
PURE = [cls for cls in SCHEDULES if issubclass(cls, Schedule)]
WARMED = [cls for cls in PURE if issubclass(cls, WarmedUp)]
GROUP = {"initial_lr": 1.0}


def context(total_updates: int | None) -> Context:
    return Context(nn.Linear(1, 1), torch.device("cpu"), total_updates)


@pytest.mark.parametrize(
    ("part", "total", "expected"), [(0, 10, 0), (0.25, 10, 2), (3, 10, 3), (1, 10, 1), (0.999, 10, 10)]
)
def test_a_length_is_a_number_of_updates_or_a_fraction(part: float, total: int, expected: int) -> None:
    assert number_of_updates(part, total) == expected


def test_the_first_update_of_a_warmup_moves_and_its_last_is_whole() -> None:
    assert [warmup_factor(update, 5) for update in range(6)] == [0.2, 0.4, 0.6, 0.8, 1.0, 1.0]
    assert warmup_factor(0, 0) == 1.0


def pure_in_range_and_endless(made: Schedule, other: Schedule, total: int) -> None:
    order = [5, 0, 11, 5, 9, 30, 3]
    one, again = made.seams(context(total)).schedule, other.seams(context(total)).schedule
    assert one is not None and again is not None
    expected = {update: one(update, GROUP) for update in sorted(order)}
    assert [again(update, GROUP) for update in order] == [expected[update] for update in order]
    assert all(0 <= rate.factor <= 1 for rate in expected.values())
    assert one(0, GROUP).factor > 0


@pytest.mark.parametrize("schedule", PURE)
@pytest.mark.parametrize("total", [1, 2, 12])
def test_a_schedule_is_pure_stays_in_range_and_survives_the_end_of_the_run(
    schedule: type[Schedule], total: int
) -> None:
    pure_in_range_and_endless(schedule.example(), schedule.example(), total)


@pytest.mark.parametrize("schedule", WARMED)
@pytest.mark.parametrize("warmup", [0, 0.3, 4, 20])
def test_so_does_one_with_any_warmup(schedule: type[WarmedUp], warmup: float) -> None:
    pure_in_range_and_endless(schedule(warmup=warmup), schedule(warmup=warmup), 12)


@pytest.mark.parametrize("schedule", WARMED)
def test_the_first_update_after_warmup_is_at_the_whole_rate(schedule: type[WarmedUp]) -> None:
    factors = [schedule(warmup=4).factor(update, 40) for update in range(6)]
    assert factors[:4] == [0.25, 0.5, 0.75, 1.0]
    assert factors[4] > 0.75 and factors[5] <= factors[4]


@pytest.mark.parametrize("schedule", WARMED)
@pytest.mark.parametrize("warmup", [-1, -0.1, 1.5, float("inf"), float("nan")])
def test_an_impossible_warmup_is_refused(schedule: type[WarmedUp], warmup: float) -> None:
    with pytest.raises(
        SettingError, match=rf"^{schedule.card.name}\.warmup: must be a whole number of updates"
    ):
        schedule(warmup=warmup)


@pytest.mark.parametrize("schedule", WARMED)
def test_a_schedule_that_needs_the_length_of_the_run_says_so(schedule: type[WarmedUp]) -> None:
    with pytest.raises(SettingError, match=f"{schedule.card.name}: needs the number of updates of the run"):
        schedule(warmup=0.1).seams(context(None))


def test_a_warm_up_of_one_update_is_a_number_and_needs_no_length() -> None:
    seams = discover()["constant"](warmup=1).seams(context(None))
    assert seams.schedule is not None
    assert [seams.schedule(updates, {}).factor for updates in range(3)] == [1.0, 1.0, 1.0]


def test_a_rate_without_momentum_leaves_the_optimizers_alone() -> None:
    assert WARMED[0](warmup=2).rate(0, 4) == Rate(0.5, None)


def test_a_warm_up_beyond_the_run_is_warned_of() -> None:
    with pytest.warns(
        SnugfitWarning, match=r"cosine\.warmup: comes to 500 updates, and the run has 16: the whole"
    ):
        discover()["cosine"](warmup=500).seams(context(16))


@pytest.mark.parametrize(
    ("ours", "theirs", "settings"),
    [
        (Linear(warmup=4), "get_linear_schedule_with_warmup", {"num_training_steps": 20}),
        (Cosine(warmup=4), "get_cosine_schedule_with_warmup", {"num_training_steps": 20}),
        (
            Polynomial(warmup=4, power=2.0),
            "get_polynomial_decay_schedule_with_warmup",
            {"num_training_steps": 20, "power": 2.0, "lr_end": 0.0},
        ),
        (
            WSD(warmup=4, cooldown=6, shape="linear"),
            "get_wsd_schedule",
            {"num_stable_steps": 10, "num_decay_steps": 6, "decay_type": "linear"},
        ),
    ],
    ids=["linear", "cosine", "polynomial", "wsd"],
)
def test_the_warm_up_is_that_of_transformers_one_update_earlier_and_the_rest_is_the_same(
    ours: Schedule, theirs: str, settings: dict[str, Any]
) -> None:
    optimization = pytest.importorskip("transformers.optimization")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = getattr(optimization, theirs)(optimizer, num_warmup_steps=4, **settings)
    expected = [float(make(update)) for make in schedule.lr_lambdas for update in range(21)]
    found = [ours.factor(update, 20) for update in range(20)]
    assert found[:4] == pytest.approx(expected[1:5])
    assert found[4:] == pytest.approx(expected[4:20])
