"""What a plan is held against."""

from __future__ import annotations

import pytest

from snugfit.planner.answers.answer import Prediction
from snugfit.planner.choice.candidate import Budget, margin_on


def needing(reserved: int, doubt: int = 0, host: int = 0) -> Prediction:
    return Prediction(reserved, {}, {}, reserved, host, 1.0, None, None, 1.0, 1, 0.5, {}, doubt_bytes=doubt)


def test_less_is_left_free_where_predictions_were_measured_than_where_none_was() -> None:
    assert 0.0014 < margin_on("cpu") < margin_on("cuda") == margin_on("mps")


def test_a_plan_fits_up_to_the_last_byte_of_what_is_not_left_free() -> None:
    budget = Budget(1000, margin=0.05)
    assert budget.usable == 950
    assert budget.holds(needing(950)) and not budget.holds(needing(951))
    assert Budget(1000, margin=0.0).holds(needing(1000))


def test_a_doubt_counts_as_if_it_were_needed() -> None:
    budget = Budget(1000, margin=0.0)
    assert budget.holds(needing(990, doubt=10)) and not budget.holds(needing(990, doubt=11))


@pytest.mark.parametrize(("host", "fits"), [(70, True), (71, False)])
def test_the_host_counts_where_it_is_named(host: int, fits: bool) -> None:
    assert Budget(1000, host_bytes=70).holds(needing(1, host=host)) is fits
    assert Budget(1000).holds(needing(1, host=host))
