from __future__ import annotations

import pytest

from snugfit.techniques.learning.inverse_sqrt import InverseSqrt
from snugfit.techniques.learning.noam import noam_rate
from tests.unit.techniques.settings import context, refuses


def test_impossible_settings_are_refused() -> None:
    refuses(InverseSqrt, warmup=-1)
    refuses(InverseSqrt, timescale=0)


@pytest.mark.parametrize(("warmup", "timescale"), [(4, None), (0, None), (4, 9), (0, 9)])
def test_it_is_the_schedule_of_transformers_one_update_early(warmup: int, timescale: int | None) -> None:
    optimization = pytest.importorskip("transformers.optimization")
    # what get_inverse_sqrt_schedule puts in where no timescale is given
    theirs = {"num_warmup_steps": warmup, "timescale": timescale or warmup or 10_000}
    for update in range(30):
        expected = optimization._get_inverse_sqrt_schedule_lr_lambda(update + 1, **theirs)
        found = InverseSqrt(warmup=warmup, timescale=timescale).factor(update, total_updates=0)
        assert found == pytest.approx(expected, rel=1e-12)


def test_it_is_noams_divided_by_its_peak() -> None:
    peak = noam_rate(5, dim=64, warmup=5)
    for update in range(40):
        expected = noam_rate(update + 1, dim=64, warmup=5) / peak
        assert InverseSqrt(warmup=5).factor(update, total_updates=0) == pytest.approx(expected, rel=1e-12)


def test_the_length_of_the_run_matters_only_to_a_warmup_in_parts_of_it() -> None:
    schedule = InverseSqrt(warmup=5)
    assert [schedule.factor(n, 10) for n in range(30)] == [schedule.factor(n, 1000) for n in range(30)]
    assert schedule.seams(context()).schedule is not None
    assert InverseSqrt(warmup=0.5).factor(4, 10) == 1.0
