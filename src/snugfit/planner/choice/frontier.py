"""The frontier: what each level of fidelity offers, from its fastest plan to its smallest."""

from __future__ import annotations

import time
from collections.abc import Iterator

from snugfit.core.technique import Fidelity
from snugfit.planner.answers.answer import FrontierBound, FrontierPoint
from snugfit.planner.choice import channel
from snugfit.planner.choice.candidate import Candidate
from snugfit.planner.choice.goals import fastest
from snugfit.planner.choice.reasons import describe
from snugfit.planner.choice.search import Search

PARTLY = "Of each level of fidelity not all was looked at that was to be: the time was over, or an interrupt ended it."


def frontier(search: Search) -> tuple[FrontierPoint, ...]:
    """Return the fastest and the smallest plan of each level at which anything fits, of those that the search looked at."""
    fits = [each for each in search.tried if each.fits]
    points: list[FrontierPoint] = []
    for level in Fidelity:
        plans = [each for each in fits if each.level is level]
        if plans:
            smallest = min(plans, key=lambda each: each.prediction.most_bytes)
            points += _points(fastest(plans), smallest)
    return tuple(points)


def explore(search: Search) -> tuple[tuple[FrontierPoint, ...], dict[str, int], bool]:
    """Search for the fastest and the smallest plan of each level that the recipe's own techniques leave, whatever is allowed.

    Of a level at which nothing fits the smallest plan is told, which says so.

    Returns:
        The points, the least bytes that each level needs of what was looked at, and whether that was all that was to be.
    """
    points: list[FrontierPoint] = []
    needs: dict[str, int] = {}
    complete = True
    for level in (each for each in Fidelity if each >= search.asked.level):
        one = search.among(level)
        channel.heed(one)
        one.best()
        one.shrink()
        complete = complete and one.complete and time.monotonic() < one.deadline
        if time.monotonic() < one.deadline:
            one.confirm(one.choice)
            one.confirm(one.smallest)
        needs |= {name: min(bytes, needs.get(name, bytes)) for name, bytes in one.needs_by_level().items()}
        smallest = one.smallest()
        if smallest is not None:
            points += _points(one.choice(), smallest)
    return tuple(points), needs, complete


def bounds(search: Search) -> tuple[FrontierBound, ...]:
    """Return for each level beyond what is allowed the least time that its arithmetic takes: no plan of it was looked at."""
    asked = search.asked.prediction
    least = []
    for level in (each for each in Fidelity if each > search.coarsest):
        times = [search.arithmetic(each) for each in search.ladder() if search.level(each) is level]
        seconds = min(times, default=0.0)
        if seconds > 0:
            tokens = asked.tokens_per_second
            most = None if tokens is None else tokens * asked.seconds_per_update / seconds
            least.append(FrontierBound(level.label, seconds, most))
    return tuple(least)


def _points(quickest: Candidate | None, smallest: Candidate) -> Iterator[FrontierPoint]:
    if quickest is not None:
        yield _point(quickest, "fastest")
    if not smallest.same(quickest):
        yield _point(smallest, "smallest")


def _point(one: Candidate, what: str) -> FrontierPoint:
    return FrontierPoint(
        one.level.label,
        what,
        one.rung,
        describe(one),
        one.prediction.reserved_bytes,
        one.prediction.host_peak_bytes,
        one.prediction.seconds_per_update,
        one.prediction.tokens_per_second,
        one.fits,
    )
