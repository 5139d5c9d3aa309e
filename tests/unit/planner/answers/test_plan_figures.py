from __future__ import annotations

import math
from dataclasses import replace

import pytest

from snugfit.planner.answers import plan_figures
from snugfit.planner.cost.records import Role
from tests.unit.report.fake_plan import (
    GIB,
    MIB,
    mlp_on_a_cpu,
    qlora_on_a_4090,
    seventy_billion_that_do_not_fit,
)


def test_every_role_has_its_place_among_the_kinds() -> None:
    assert sorted(plan_figures.KINDS) == sorted(role.value for role in Role)


def test_the_headline_of_a_plan_that_fits_says_memory_and_time_and_that_they_are_predicted() -> None:
    # 10.95 GiB of the step and 760 MiB besides
    assert plan_figures.headline(qlora_on_a_4090()) == (
        "Fits: 11.7 GiB of 24 GiB on rtx4090, 1.90 s an update, 3h 10m in all (predicted)"
    )


def test_what_was_measured_is_not_called_predicted() -> None:
    answer = qlora_on_a_4090()
    found = replace(
        answer.prediction, confidence={"memory": "measured on a tiny batch", "time": "uncalibrated"}
    )
    assert plan_figures.headline(replace(answer, prediction=found)).endswith(
        "(memory measured, time predicted)"
    )
    found = replace(found, confidence={"memory": "measured", "time": "measured here"})
    assert plan_figures.headline(replace(answer, prediction=found)).endswith("(measured)")


def test_the_headline_of_a_plan_that_does_not_fit_says_what_is_needed_and_what_is_there() -> None:
    answer = seventy_billion_that_do_not_fit()
    assert plan_figures.headline(answer) == (
        "Does not fit: the smallest plan takes 49.9 GiB, the budget on rtx4090 is 24 GiB (predicted)"
    )
    # the device's memory would do: something else is short, and the reason says what
    short = replace(answer, budget_bytes=80 * GIB, why=("The host's 32 GiB are 129 GiB too few.",))
    assert plan_figures.headline(short) == "Does not fit on rtx4090: The host's 32 GiB are 129 GiB too few."


def test_several_devices_are_said_to_need_it_each() -> None:
    answer = qlora_on_a_4090()
    answer = replace(answer, choice=replace(answer.choice, devices=2, strategy="fsdp"))
    assert "24 GiB on each of 2 × rtx4090" in plan_figures.headline(answer)
    assert plan_figures.choice_words(answer.choice)[-1] == "fsdp on 2 devices"


@pytest.mark.parametrize("make", [qlora_on_a_4090, seventy_billion_that_do_not_fit, mlp_on_a_cpu])
def test_the_rows_of_memory_add_up_to_what_the_device_has_to_have(make) -> None:
    answer = make()
    assert sum(size for _, size in plan_figures.memory_rows(answer)) == answer.prediction.reserved_bytes


def test_context_and_allocator_are_told_apart_only_where_the_context_is_known() -> None:
    answer = qlora_on_a_4090()
    assert plan_figures.memory_rows(answer)[-2:] == [("allocator", 310 * MIB), ("context", 450 * MIB)]
    unknown = replace(answer, device={"name": "rtx4090"})
    assert plan_figures.memory_rows(unknown)[-1] == ("overhead", 760 * MIB)


def test_a_kind_that_is_not_known_is_told_after_the_others() -> None:
    answer = mlp_on_a_cpu()
    found = replace(
        answer.prediction, peak_by_kind={"zebra": 1, "weights": 2}, peak_bytes=3, reserved_bytes=3
    )
    assert plan_figures.memory_rows(replace(answer, prediction=found)) == [("weights", 2), ("zebra", 1)]


def test_what_was_measured_is_said_to_lie_above_or_below_what_was_predicted() -> None:
    # 405 / 412 = 1 − 1.70 %, 0.24 / 0.21 = 1 + 14.3 %
    assert (
        plan_figures.compare_line(
            {"peak_bytes": 412 * MIB, "seconds_per_update": 0.21},
            {"peak_bytes": 405 * MIB, "seconds_per_update": 0.24},
        )
        == "predicted 412 MiB and 0.21 s an update; measured 405 MiB (1.7 % below) and 0.24 s (14 % above)"
    )


@pytest.mark.parametrize(
    ("predicted", "measured", "said"),
    [
        ({"peak_bytes": MIB}, {"peak_bytes": MIB}, "predicted 1 MiB; measured 1 MiB (as predicted)"),
        ({"peak_bytes": 3 * MIB}, {"peak_bytes": MIB}, "predicted 3 MiB; measured 1 MiB (67 % below)"),
        ({"peak_bytes": MIB}, {"peak_bytes": 3 * MIB}, "predicted 1 MiB; measured 3 MiB (3 × as much)"),
        ({"peak_bytes": MIB}, {"peak_bytes": 0}, "predicted 1 MiB"),
        ({"peak_bytes": MIB}, {"seconds_per_update": 2}, "predicted 1 MiB; measured 2.00 s an update"),
        ({"peak_bytes": math.nan}, {"peak_bytes": "much"}, ""),
        ({}, {}, ""),
    ],
)
def test_what_is_missing_or_no_number_is_not_compared(predicted, measured, said) -> None:
    assert plan_figures.compare_line(predicted, measured) == said
