"""The way from the curve of a range test to learning rates: three rules, whether there is anything to say at all, and whether it can be relied on."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

MINIMUM, STEEPEST, VALLEY = "minimum", "steepest", "valley"
"""Names of the rules. In `benchmarks/find_lr` `minimum` is the one that was never far off, from scratch and in fine-tuning, and `valley`
is low: the best rate is 6 to 21 times as high."""

FEWEST = 10
"""Readings below which no rule is applied."""

ENOUGH = 30
"""Readings below which no rate is recommended."""

LAG = 2.0
"""Powers of ten of the rate by which the smoothed loss may come after the losses themselves."""

APART = 10.0
"""Times that the higher of `minimum` and `steepest` may be the lower one for any rate to be recommended, and that `minimum` may be
`valley` for it to be the recommended one. In `benchmarks/find_lr` the first is 9 at most."""

ABOVE_VALLEY = 20.0
"""Times that the recommended rate may be that of `valley`. In `benchmarks/find_lr` it is 12 at most."""

FLAT, NOISY = 0.05, 0.5
"""Part of the first losses by which the loss must fall, and part of that fall that single windows may differ by."""

CERTAIN = 4.0
"""Standard errors by which the loss must fall. The lowest of a hundred readings of noise alone is that low once in a hundred tests."""


class RateReading(NamedTuple):
    """A reading of a range test: the rate, the loss before the update, and the smoothed loss up to there."""

    learning_rate: float
    loss: float
    smoothed: float


@dataclass(frozen=True)
class Suggestion:
    """A rate, the reading of the curve that it was taken from, and why."""

    learning_rate: float
    place: int
    reason: str


def suggest(curve: Sequence[RateReading]) -> tuple[Mapping[str, Suggestion], str]:
    """Rates by the rule's name, and where there are none the reason, as a sentence.

    The first tenth of the readings is passed over: the average is of a few losses there, and the rates are too small to matter.

    Args:
        curve: readings with a finite loss, by rising rate.
    """
    if len(curve) < FEWEST:
        return {}, (
            f"there are {len(curve)} readings, too few to tell a good rate from. Begin with a lower rate, or give more updates"
        )
    first = max(1, len(curve) // 10)
    lowest = min(range(first, len(curve)), key=lambda place: curve[place].smoothed)
    fall, noise = _fall(curve, first, lowest)
    if fall <= CERTAIN * noise:
        change = "rises" if fall < -CERTAIN * noise else f"falls by {max(fall, 0.0):.2g}"
        return {}, (
            f"no rate lowers the loss: from {_mean(curve, 0, first):.4g} at small rates it {change}, and its windows alone make it "
            f"{noise:.2g} uncertain. Look at data, labels and loss, or try more updates"
        )
    suggestions = {
        STEEPEST: _steepest(curve, first, lowest),
        VALLEY: _valley(curve, first),
        MINIMUM: _minimum(curve, lowest),
    }
    return {name: each for name, each in suggestions.items() if each is not None}, ""


def recommended(suggestions: Mapping[str, Suggestion]) -> str:
    """Return the name of the rule whose rate is given where one number is asked for.

    It is `minimum`, unless that is far above `valley`: then the lower one of `minimum` and `steepest`.

    >>> rates = {"steepest": 0.01, "valley": 0.001, "minimum": 0.02}
    >>> recommended({name: Suggestion(rate, 0, "") for name, rate in rates.items()})
    'steepest'
    """
    valley = suggestions.get(VALLEY)
    if valley is None or suggestions[MINIMUM].learning_rate <= APART * valley.learning_rate:
        return MINIMUM
    return min(
        (rule for rule in (MINIMUM, STEEPEST) if rule in suggestions),
        key=lambda rule: suggestions[rule].learning_rate,
    )


def doubts(
    curve: Sequence[RateReading],
    suggestions: Mapping[str, Suggestion],
    *,
    updates: int,
    smoothing: float,
    diverged: bool,
) -> list[str]:
    """Return why no rate can be relied on although the rules name some, each with what to do; empty where one can.

    Args:
        curve: as for `suggest`.
        updates: of the whole range, of which the curve may have the first alone.
        diverged: whether the test ended because the loss rose.
    """
    reasons = []
    count = len(curve)
    decades = math.log10(curve[-1].learning_rate / curve[0].learning_rate)
    lag = decades / (count - 1) / (1 - smoothing)
    if count < ENOUGH or lag > LAG:
        finer = max((ENOUGH - 1) / (count - 1), lag / LAG)  # times, over the whole range
        needed = math.ceil(round((updates - 1) * finer, 6)) + 1
        reasons.append(
            f"{count} updates over {decades:.2g} powers of ten are too few: the smoothed loss comes {lag:.2g} powers of ten behind. "
            f"Give at least {needed} updates"
        )
    lowest = suggestions[MINIMUM].place
    edge = max(1, count // 20)
    if lowest >= count - edge and not diverged:
        reasons.append(
            f"the loss is lowest at the end of the range, at {curve[lowest].learning_rate:.2g}, so where it rises is not seen. Give a "
            "higher end, or harder data if any rate learns these"
        )
    if lowest < max(1, count // 10) + edge:
        reasons.append(
            f"the loss is lowest at the beginning of the range, at {curve[lowest].learning_rate:.2g}. Give a lower start"
        )
    first = max(1, count // 10)
    fall, noise = _fall(curve, first, lowest)
    level, window = abs(_mean(curve, 0, first)), noise * math.sqrt(first)
    if fall < FLAT * level:
        reasons.append(
            f"the curve is flat: the loss falls by {fall / level:.1%} in all. Train for longer at two or three rates and compare those"
        )
    if window > NOISY * fall:
        reasons.append(
            f"the curve is noisy: windows differ by {window:.2g}, and the loss falls by {fall:.2g}. Give more updates, or a larger "
            "global batch"
        )
    return reasons + _disagreement(suggestions)


def _disagreement(suggestions: Mapping[str, Suggestion]) -> list[str]:
    """Return why the rules are too far apart for any to be recommended; empty where they are not."""
    rule = recommended(suggestions)
    pairs = ((VALLEY, rule, ABOVE_VALLEY), (MINIMUM, STEEPEST, APART), (STEEPEST, MINIMUM, APART))
    reasons = []
    for lower, higher, apart in pairs:
        if lower not in suggestions or higher not in suggestions:
            continue
        low, high = suggestions[lower].learning_rate, suggestions[higher].learning_rate
        if high > apart * low:
            reasons.append(
                f"the rules are {high / low:.2g} times apart, {lower} at {low:.2g} and {higher} at {high:.2g}. Try a short run with each"
            )
    return reasons


def _mean(curve: Sequence[RateReading], start: int, count: int) -> float:
    return statistics.fmean(reading.loss for reading in curve[start : start + count])


def _fall(curve: Sequence[RateReading], count: int, lowest: int) -> tuple[float, float]:
    """Return how far the lowest mean of `count` losses in a row lies below that of the first ones, and its standard error.

    It is of the losses themselves: their average lags behind a fall that is short.
    """
    last = max(count, len(curve) - count)
    fall = _mean(curve, 0, count) - min(_mean(curve, place, count) for place in range(count, last + 1))
    # neighbours differ by their windows more than by the rate: √2 times the deviation of one, of which the median is 0.6745
    steps = [abs(after.loss - before.loss) for before, after in pairwise(curve[: max(lowest, 2 * count) + 1])]
    return fall, statistics.median(steps) / 0.6745 / math.sqrt(count)


def _steepest(curve: Sequence[RateReading], first: int, lowest: int) -> Suggestion | None:
    """Return where the smoothed loss falls fastest over the logarithm of the rate, before its lowest reading.

    Source: Smith 2015, arXiv:1506.01186; the slope is of both neighbours.
    """
    slopes = {
        place: (curve[place + 1].smoothed - curve[place - 1].smoothed)
        / math.log(curve[place + 1].learning_rate / curve[place - 1].learning_rate)
        for place in range(first, lowest)
    }
    if not slopes or min(slopes.values()) >= 0:
        return None
    place = min(slopes, key=lambda each: slopes[each])
    fall = -slopes[place] * math.log(10)
    return Suggestion(
        curve[place].learning_rate,
        place,
        f"the loss falls fastest here, by {fall:.3g} for a rate ten times as high",
    )


def _valley(curve: Sequence[RateReading], first: int) -> Suggestion:
    """Return the middle of the longest descent: of the longest series of readings each of which is below the one before it.

    Source: fastai's `valley`, which takes the series to be of neighbours when it goes back from its end to its beginning.
    """
    losses = [reading.smoothed for reading in curve[first:]]
    lengths = longest_falls(losses)
    end = lengths.index(max(lengths))
    begin = end - lengths[end]
    third = (end - begin) / 3
    place = begin + int(third) + int(third / 2)
    low, high = curve[first + max(0, begin)].learning_rate, curve[first + end].learning_rate
    return Suggestion(
        curve[first + place].learning_rate,
        first + place,
        f"the middle of the longest descent, which goes from {low:.2g} to {high:.2g}",
    )


def longest_falls(values: Sequence[float]) -> list[int]:
    """Return for each value the length of the longest falling series, with gaps, that ends with it.

    >>> longest_falls([5.0, 6.0, 4.0, 4.5, 3.0])
    [1, 1, 2, 2, 3]
    """
    lengths: list[int] = []
    for place, value in enumerate(values):
        before = (lengths[earlier] for earlier in range(place) if values[earlier] > value)
        lengths.append(1 + max(before, default=0))
    return lengths


def _minimum(curve: Sequence[RateReading], lowest: int) -> Suggestion:
    """Return a tenth of the rate at which the smoothed loss is lowest: there it is about to rise. Source: folklore; fastai."""
    rate = curve[lowest].learning_rate
    return Suggestion(rate / 10, lowest, f"a tenth of {rate:.2g}, where the loss is lowest")
