"""The memory over an update, made small enough to be drawn without losing its peak."""

from __future__ import annotations

from itertools import groupby
from typing import NamedTuple

from snugfit.planner.answers.answer import Timeline


class Band(NamedTuple):
    """A segment of the update: its name, and where it begins and ends, in shares of the update."""

    name: str
    start: float
    end: float


def places(timeline: Timeline) -> list[float]:
    """Return where each point lies in the update, from 0 to 1: by its time, or by its number where no time passes."""
    first, count = timeline.seconds[0], len(timeline.seconds)
    span = timeline.seconds[-1] - first
    if span > 0:
        return [(seconds - first) / span for seconds in timeline.seconds]
    return [point / max(1, count - 1) for point in range(count)]


def totals(timeline: Timeline) -> list[int]:
    """Return bytes of all kinds at each point."""
    return [sum(kinds) for kinds in zip(*timeline.bytes_by_kind.values(), strict=True)]


def highest(timeline: Timeline, columns: int) -> list[int]:
    """Return for each of `columns` equal stretches of the update the point in force there at which memory is highest.

    A point is in force until the next one, so a stretch without points has the last one before it.

    >>> highest(Timeline(("forward",) * 4, (0.0, 0.1, 0.2, 1.0), {"weights": (1, 9, 3, 2)}), 4)
    [1, 2, 2, 2]
    """
    where, total = places(timeline), totals(timeline)
    points, point, last = [], 0, 0
    for column in range(1, columns + 1):
        best = last
        while point < len(where) and (where[point] * columns < column or column == columns):
            if total[point] > total[best]:
                best = point
            last, point = point, point + 1
        points.append(best)
    return points


def bands(timeline: Timeline) -> list[Band]:
    """Return the segments in order, each from its first point to that of the next.

    >>> bands(Timeline(("forward", "forward", "backward"), (0.0, 1.0, 4.0), {"weights": (1, 1, 1)}))
    [Band(name='forward', start=0.0, end=1.0), Band(name='backward', start=1.0, end=1.0)]
    """
    where = places(timeline)
    joined: list[Band] = []
    for name, points in groupby(range(len(where)), key=timeline.segments.__getitem__):
        start = where[next(points)]
        if joined:
            joined[-1] = joined[-1]._replace(end=start)
        joined.append(Band(name, start, 1.0))
    return joined
