"""Which rate each rule takes from a curve, and when none is said."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence

import pytest

from snugfit.tools.find_lr.lr_rules import RateReading, Suggestion, doubts, recommended, suggest


def curve(losses: Sequence[float], smoothed: Sequence[float] | None = None) -> list[RateReading]:
    """Readings at the rates 1, 10, 100 …"""
    rates = [10.0**place for place in range(len(losses))]
    return [RateReading(*reading) for reading in zip(rates, losses, smoothed or losses, strict=True)]


FALLING = [5.0, 5.0, 5.0, 4.9, 4.0, 3.0, 2.5, 2.4, 2.6, 4.0, 9.0]


def test_each_rule_takes_its_place_on_a_curve_worked_out_by_hand() -> None:
    found, reason = suggest(curve(FALLING))
    assert reason == ""
    # over two decades the loss falls most, by 1.9, from 4.9 to 3.0
    assert found["steepest"].place == 4 and found["steepest"].learning_rate == 1e4
    assert "by 0.95 for a rate ten times as high" in found["steepest"].reason
    # behind the first reading: 5.0, 4.9, 4.0, 3.0, 2.5, 2.4 at places 1 to 7, the series ends at 6 of these and has 6 of them
    assert found["valley"].place == 1 + 0 + 2 + 1
    assert (
        found["minimum"].learning_rate == pytest.approx(1e6) and "a tenth of 1e+07" in found["minimum"].reason
    )


def test_the_valley_is_that_of_fastai() -> None:
    """`fastai.callback.schedule.valley`, written out as there."""

    def published(rates: list[float], losses: list[float]) -> float:
        n = len(losses)
        max_start, max_end = 0, 0
        lds = [1] * n
        for i in range(1, n):
            for j in range(i):
                if (losses[i] < losses[j]) and (lds[i] < lds[j] + 1):
                    lds[i] = lds[j] + 1
                if lds[max_end] < lds[i]:
                    max_end = i
                    max_start = max_end - lds[max_end]
        sections = (max_end - max_start) / 3
        return rates[max_start + int(sections) + int(sections / 2)]

    for seed in range(5):
        source = random.Random(seed)
        losses = [
            3 - 2 / (1 + math.exp(-(place - 25) / 4)) + math.exp(place - 48) + source.gauss(0, 0.02)
            for place in range(50)
        ]
        given = curve(losses)
        rates = [reading.learning_rate for reading in given]
        found, _ = suggest(given)
        assert found["valley"].learning_rate == published(rates[5:], losses[5:])


@pytest.mark.parametrize("seed", range(10))
def test_noise_alone_gives_no_rate(seed: int) -> None:
    source = random.Random(seed)
    losses = [2.3 + source.gauss(0, 0.1) for _ in range(100)]
    found, reason = suggest(curve(losses, averages(losses, 0.9)))
    assert not found and reason.startswith("no rate lowers the loss: from 2.")


@pytest.mark.parametrize("seed", range(10))
def test_a_fall_that_stands_out_of_the_same_noise_gives_one(seed: int) -> None:
    source = random.Random(seed)
    means = [2.3 - 0.4 * (40 <= place < 80) + 2.0 * (place >= 80) for place in range(100)]
    losses = [mean + source.gauss(0, 0.1) for mean in means]
    found, reason = suggest(curve(losses, averages(losses, 0.9)))
    assert set(found) == {"steepest", "valley", "minimum"} and reason == ""
    assert 40 < found["minimum"].place <= 80


def test_a_loss_that_stands_still_or_only_rises_gives_no_rate() -> None:
    for losses, told in (([1.0] * 20, "falls by 0,"), ([1.0 + place for place in range(20)], "it ")):
        found, reason = suggest(curve(losses))
        assert not found and told in reason and "Look at data, labels and loss" in reason


def test_too_few_readings_give_no_rate() -> None:
    found, reason = suggest(curve(FALLING[:9]))
    assert not found and reason.startswith("there are 9 readings, too few")


def bowl(low: float = 1.0, width: float = 20.0, noise: float = 0.0, floor: float = 0.5) -> list[RateReading]:
    """A hundred readings from 1e-6 to 10 that fall from 2 to `floor` about a rate of `low` and rise at once behind it."""
    source = random.Random(1)
    rates = [10 ** (-6 + 7 * place / 99) for place in range(100)]
    means = [
        2.0
        - (2.0 - floor) / (1 + math.exp(-(math.log10(rate / low) + 0.5) * width))
        + 4 * max(0.0, rate / low - 1)
        for rate in rates
    ]
    losses = [mean + source.gauss(0, noise) for mean in means]
    return [RateReading(*each) for each in zip(rates, losses, averages(losses, 0.5), strict=True)]


def doubted(
    readings: list[RateReading], smoothing: float = 0.5, diverged: bool = True, updates: int | None = None
) -> list[str]:
    found, reason = suggest(readings)
    assert reason == ""
    updates = len(readings) if updates is None else updates
    return doubts(readings, found, updates=updates, smoothing=smoothing, diverged=diverged)


def test_a_clear_fall_inside_of_the_range_leaves_no_doubt() -> None:
    assert doubted(bowl(low=0.1)) == []


def test_a_minimum_at_an_end_of_the_range_is_doubted() -> None:
    (end,) = (each for each in doubted(bowl(low=20.0), diverged=False) if "end of the range" in each)
    assert end.startswith("the loss is lowest at the end of the range, at 10,") and "Give a higher end" in end
    assert not any("end of the range" in each for each in doubted(bowl(low=0.1), diverged=False))
    begins = curve([2.0, 1.0, 0.5, 0.4] + [1.0] * 36)
    assert any("beginning of the range" in each for each in _all_doubts(begins))


def _all_doubts(readings: list[RateReading]) -> list[str]:
    """The doubts about rules that are all at the lowest reading."""
    lowest = min(range(len(readings)), key=lambda place: readings[place].smoothed)
    each = Suggestion(readings[lowest].learning_rate, lowest, "")
    rules = {"steepest": each, "valley": each, "minimum": each}
    return doubts(readings, rules, updates=len(readings), smoothing=0.0, diverged=True)


def rates(**given: float) -> dict[str, Suggestion]:
    return {rule: Suggestion(rate, 70, "") for rule, rate in given.items()}


@pytest.mark.parametrize(
    ("rule", "given"),
    [
        ("minimum", {"steepest": 1.6e-3, "valley": 1.2e-4, "minimum": 1.9e-4}),  # the demo
        (
            "minimum",
            {"steepest": 0.385, "valley": 0.0126, "minimum": 0.0453},
        ),  # the others: benchmarks/find_lr
        ("minimum", {"steepest": 0.0285, "valley": 0.00152, "minimum": 0.0089}),
        ("steepest", {"steepest": 0.0107, "valley": 0.00129, "minimum": 0.0171}),
        ("steepest", {"steepest": 0.0394, "valley": 0.00475, "minimum": 0.167}),
        ("minimum", {"valley": 0.001, "minimum": 0.015}),
    ],
)
def test_a_valley_far_below_the_other_rules_leads_to_the_more_careful_of_them(
    rule: str, given: dict[str, float]
) -> None:
    assert recommended(rates(**given)) == rule
    assert doubts(bowl(low=0.1), rates(**given), updates=100, smoothing=0.5, diverged=True) == []


@pytest.mark.parametrize(
    ("given", "told"),
    [
        # a recommended 3e-3 where 1e-4 is good, whichever rule is the low one
        ({"steepest": 5e-3, "valley": 1e-4, "minimum": 3e-3}, "30 times apart, valley at 0.0001 and minimum"),
        (
            {"steepest": 6e-5, "valley": 5e-5, "minimum": 3e-3},
            "50 times apart, steepest at 6e-05 and minimum",
        ),
        (
            {"steepest": 0.15, "valley": 1e-3, "minimum": 3e-3},
            "50 times apart, minimum at 0.003 and steepest",
        ),
    ],
)
def test_a_rate_that_the_other_rules_do_not_bear_out_is_doubted(given: dict[str, float], told: str) -> None:
    (found,) = doubts(bowl(low=0.1), rates(**given), updates=100, smoothing=0.5, diverged=True)
    assert found.startswith(f"the rules are {told}")


def test_rules_may_be_ten_times_apart_and_the_rate_twenty_times_the_valley_s() -> None:
    def count(**given: float) -> int:
        return len(doubts(bowl(low=0.1), rates(**given), updates=100, smoothing=0.5, diverged=True))

    assert [count(steepest=0.01 * factor, valley=0.01, minimum=0.01) for factor in (9.9, 10.1)] == [0, 1]
    assert [count(steepest=factor, valley=1.0, minimum=factor) for factor in (19.9, 20.1)] == [0, 1]


def test_a_flat_curve_and_a_noisy_one_are_doubted() -> None:
    assert "the curve is flat" in doubted(bowl(low=0.1, floor=1.93))[0]
    assert not any("flat" in each for each in doubted(bowl(low=0.1, floor=1.8)))
    noisy = bowl(low=0.1, floor=1.5, noise=0.3)
    assert any("the curve is noisy" in each for each in _all_doubts(noisy))
    assert not any("noisy" in each for each in doubted(bowl(low=0.1, floor=0.5, noise=0.1)))


def test_few_updates_for_the_range_or_the_smoothing_are_doubted() -> None:
    assert any("too few" in each for each in doubted(bowl(low=0.1)[::4]))
    late = doubted(bowl(low=0.1), smoothing=0.98)
    assert late[0].startswith("100 updates over 7 powers of ten are too few") and "at least 176" in late[0]


def test_the_updates_that_are_asked_for_are_those_of_the_whole_range_of_which_a_test_saw_a_part() -> None:
    def readings(updates: int) -> list[RateReading]:
        """The part below 1 of a test from 1e-6 to 100."""
        rates = [10 ** (-6 + 8 * place / (updates - 1)) for place in range(updates)]
        losses = [2 - 1.5 / (1 + math.exp(-(math.log10(rate) + 2) * 6)) for rate in rates if rate < 1]
        return [RateReading(*each) for each in zip(rates, losses, losses, strict=False)]

    (few,) = (each for each in doubted(readings(50), 0.95, updates=50) if "too few" in each)
    needed = int(few.removesuffix(" updates").rpartition(" ")[2])
    assert needed == 81
    assert not any("too few" in each for each in doubted(readings(needed), 0.95, updates=needed))


def averages(losses: Sequence[float], smoothing: float) -> list[float]:
    """The weighted mean of all losses so far, each weighing `smoothing` times as much as the one after it."""
    found = []
    for count in range(1, len(losses) + 1):
        weights = [smoothing ** (count - 1 - place) for place in range(count)]
        total = sum(weight * loss for weight, loss in zip(weights, losses, strict=False))
        found.append(total / sum(weights))
    return found
