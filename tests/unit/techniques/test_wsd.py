from __future__ import annotations

import pytest

from snugfit.techniques.learning.wsd import WSD
from tests.unit.techniques.settings import refuses


def test_impossible_settings_are_refused() -> None:
    refuses(WSD, warmup=-1)
    refuses(WSD, cooldown=1.5)
    refuses(WSD, cooldown=-0.1)
    refuses(WSD, shape="cosine")
    refuses(WSD, minimum=1.1)


def test_it_rises_stays_and_falls_in_a_straight_line() -> None:
    schedule = WSD(warmup=2, cooldown=4, shape="linear")
    factors = [schedule.factor(update, total_updates=10) for update in range(12)]
    assert factors == [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0]


def test_one_minus_the_root_falls_fast_at_first() -> None:
    factors = [WSD(cooldown=4).factor(update, total_updates=8) for update in range(9)]
    assert factors == pytest.approx([1, 1, 1, 1, 1, 0.5, 1 - 0.5**0.5, 1 - 0.75**0.5, 0.0], abs=1e-12)


def test_the_cooldown_is_a_fraction_of_the_whole_run_warmup_included() -> None:
    fraction, count = WSD(warmup=5, cooldown=0.2), WSD(warmup=5, cooldown=4)
    assert [fraction.factor(n, 20) for n in range(20)] == [count.factor(n, 20) for n in range(20)]


def test_without_cooldown_the_rate_stays() -> None:
    assert [WSD(cooldown=0).factor(update, total_updates=3) for update in range(5)] == [1.0] * 5


def test_a_run_shorter_than_warmup_and_cooldown_still_rises_first() -> None:
    factors = [
        WSD(warmup=4, cooldown=4, shape="linear").factor(update, total_updates=6) for update in range(7)
    ]
    assert factors == [0.25, 0.5, 0.75, 1.0, 1.0, 0.5, 0.0]


def test_a_run_can_be_prolonged_from_before_its_cooldown() -> None:
    schedule = WSD(warmup=3, cooldown=5)
    assert [schedule.factor(n, 20) for n in range(16)] == [schedule.factor(n, 200) for n in range(16)]


def test_it_ends_at_the_minimum() -> None:
    assert WSD(minimum=0.1).factor(10, total_updates=10) == pytest.approx(0.1)
