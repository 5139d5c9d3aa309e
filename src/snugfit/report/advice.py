"""Advice on a run's length from its evaluations: train longer, shorter, or stop where it did."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from snugfit.errors import SettingError
from snugfit.kit.metric_directions import name_and_direction
from snugfit.report.series import as_number, format_number
from snugfit.report.story import Story, mapping
from snugfit.units import counted

RAW = "raw"
FEWEST = 6  # evaluations, below which a turn of the curve is told by one or two values
NOTICEABLE = 0.03  # of all that was gained; less is not worth an epoch
FARTHEST = 2.0  # times the run: beyond it an extrapolation is a guess
_PERFECT = 1.0  # of a metric that goes from 0 to 1


@dataclass(frozen=True)
class Advice:
    """`verdict` is longer, shorter, stop or unknown; `epochs` is None where nothing can be suggested."""

    verdict: str
    epochs: float | None
    reason: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def text(self) -> str:
        """Return it as one sentence after the other."""
        about = "" if self.epochs is None else f", about {format_number(round(self.epochs, 1))} epochs"
        head = {
            "longer": f"Train longer{about}",
            "shorter": f"Train shorter{about}",
            "stop": "This length is right",
            "unknown": "No advice",
        }[self.verdict]
        return f"{head}. {self.reason}"


def advise(story: Story) -> Advice:
    """Advice from the evaluations of a run; of an averaged run, from those of the average alone."""
    monitored = story.best_metric or "loss"
    try:
        name, higher = name_and_direction("evaluate.best", monitored)
    except SettingError:
        return Advice("unknown", None, f"Whether a high or a low {monitored} is better is not known.")
    curve: dict[str, list[tuple[float, float]]] = {RAW: []}
    kind = RAW
    for event in story.evaluations:
        kind = str(event.get("weights", RAW))  # at last, that of the end
        points = curve.setdefault(kind, [])
        epoch, value = as_number(event.get("epoch")), as_number(mapping(event.get("metrics")).get(name))
        if epoch is not None and value is not None:
            points.append((epoch, value))
    words = name.replace("_", " ")
    what = words if kind == RAW else f"{words} of the averaged weights ({kind})"
    advice = read_curve(curve[kind], higher=higher, what=what)
    if kind == RAW or not curve[RAW]:
        return advice
    pick = max if higher else min
    raw, averaged = pick(value for _, value in curve[RAW]), pick(value for _, value in curve[kind])
    if pick(raw, averaged) == averaged:
        return advice
    better = (
        f"The raw weights before it had been better: {format_number(raw)}, against {format_number(averaged)}."
    )
    return replace(advice, reason=f"{advice.reason} {better}")


def read_curve(curve: Sequence[tuple[float, float]], *, higher: bool, what: str = "metric") -> Advice:
    """Advice from one metric's evaluations.

    The end is compared with the quarter before it and with the best stretch, each against the noise of the curve.

    >>> falling = [(epoch, 1 / epoch) for epoch in range(1, 9)]
    >>> read_curve(falling, higher=False, what="loss").verdict
    'longer'

    Args:
        curve: epoch and value of each evaluation, in order; finite.
        higher: whether higher is better.
        what: the metric, in words.
    """
    count = len(curve)
    if count < FEWEST:
        return Advice(
            "unknown",
            None,
            f"{counted(count, 'evaluation')} of the {what} cannot be told from chance; {FEWEST} or more can. Evaluate "
            "more often: evaluate.every.",
        )
    epochs = [epoch for epoch, _ in curve]
    scores = [value if higher else -value for _, value in curve]
    width = max(2, count // 4)
    # the first half is steep, and bends without noise; of the difference between two means
    noise = _noise(scores[-max(5, count // 2) :]) * math.sqrt(2 / width)
    means = [_mean(scores[place : place + width]) for place in range(count - width + 1)]
    best = max(range(len(means)), key=means.__getitem__)
    floor = max(2 * noise, NOTICEABLE * (max(means) - means[0]))
    end, total = means[-1], epochs[-1]

    if higher and set(scores[-width:]) == {_PERFECT} and min(scores) >= 0:
        since = epochs[next(place for place in range(count) if set(scores[place:]) == {_PERFECT})]
        verdict = "shorter" if since <= total / 2 else "stop"
        return Advice(
            verdict,
            since if verdict == "shorter" else total,
            f"The {what} is 1 from epoch {_short(since)} on, and cannot be better.",
        )
    if means[best] - end > floor:
        turn = max(range(best, best + width), key=scores.__getitem__)
        return Advice(
            "shorter",
            epochs[turn],
            f"The {what} was best around epoch {_short(epochs[turn])} ({_value(scores[turn], higher)}) and has become worse since: "
            f"{_value(end, higher)} at the end. The best weights were kept.",
        )
    gain, span = end - means[-1 - width], total - epochs[-1 - width]
    if gain > floor:
        return _longer(gain, means, width, total, span, what)
    too_little = f"no more than its noise, or than {NOTICEABLE:.0%} of the whole"
    ready_at = next(place for place, mean in enumerate(means) if max(means) - mean <= floor)
    ready = epochs[min(ready_at + width, count) - 1]
    if ready <= total / 2:
        return Advice(
            "shorter",
            ready,
            f"The {what} was there by epoch {_short(ready)}, and has gained {too_little} since: {_value(end, higher)} at the end.",
        )
    return Advice(
        "stop",
        total,
        f"The {what} has come to rest at {_value(end, higher)}: over the last {_short(span)} epochs it gained {too_little}.",
    )


def _longer(gain: float, means: Sequence[float], width: int, total: float, span: float, what: str) -> Advice:
    """Return how far the gain goes on, if each stretch gains the same part of the one before."""
    before = means[-1 - width] - means[max(0, len(means) - 1 - 2 * width)]
    ratio = gain / before if before > 0 else 1.0
    further = (
        span * math.log(0.1) / math.log(ratio) if ratio < 1 else math.inf
    )  # to nine tenths of what is left
    suggested = min(total + further, FARTHEST * total)
    bound = (
        f" It may be more: nothing is said beyond {FARTHEST:g} times this run."
        if suggested < total + further
        else ""
    )
    return Advice(
        "longer",
        suggested,
        f"The {what} still gains {format_number(gain)} over the last {_short(span)} epochs.{bound} A schedule that ends with the run "
        "has to be trained anew, not gone on with.",
    )


def _noise(scores: Sequence[float]) -> float:
    """Return the spread of single values around a smooth curve, from their second differences; one outlier does not matter."""
    triples = zip(scores, scores[1:], scores[2:], strict=False)
    bends = [abs(first - 2 * second + third) for first, second, third in triples]
    # of normal noise the median of |bend| is 0.6745 times its spread, which is √6 times that of a value
    return statistics.median(bends) / (0.6745 * math.sqrt(6))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _value(score: float, higher: bool) -> str:
    return format_number(score if higher else -score)


def _short(epochs: float) -> str:
    return format_number(round(epochs, 2))
