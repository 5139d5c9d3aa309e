"""The end that a learning rate would come to, read from the rates that were used: whoever has set them, a schedule, a function or a line of the loop."""

from __future__ import annotations

import math
from collections.abc import Sequence

LEAST_POINTS = 6
FALLEN = 1e-6
"""Share of its size by which a rate must have fallen, for its fall to be measured."""
ALIKE = 2e-3
POWERS = (1.0, 0.9, 2.0, 0.5)
COSINE = "cosine"


def end_of(points: Sequence[tuple[int, float]]) -> tuple[int, str] | None:
    """Return the update at which a rate that falls from its peak comes to 0, and along which curve; None where it follows none that ends.

    Args:
        points: updates, and the rates that they used.

    >>> end_of([(update, 0.1 * (1 - update / 480) ** 0.9) for update in range(30)])
    (480, 'power 0.9')
    >>> end_of([(update, 0.05 * (1 + math.cos(math.pi * update / 90))) for update in range(12)])
    (90, 'cosine')
    >>> end_of([(update, 0.1 * 0.97**update) for update in range(30)])
    """
    peak = max((rate for _, rate in points), default=0.0)
    if peak <= 0:
        return None
    begin = max(place for place, (_, rate) in enumerate(points) if rate == peak)
    first = points[begin][0]
    fall = [(update - first, rate / peak) for update, rate in points[begin + 1 :]]
    if any(
        one >= other
        for one, other in zip([0, *(update for update, _ in fall)], (u for u, _ in fall), strict=False)
    ):
        return None  # of an optimizer that another one has outrun, whose updates are not counted
    steady = all(one > other >= 0 for (_, one), (_, other) in zip([(0, 1.0), *fall], fall, strict=False))
    if len(fall) < LEAST_POINTS or not steady or 1 - fall[-1][1] < FALLEN:
        return None
    ends = {curve: [update / _way(share, curve) for update, share in fall] for curve in (*POWERS, COSINE)}
    spreads = {curve: (max(each) - min(each)) / max(each) for curve, each in ends.items()}
    curve = min(spreads, key=spreads.__getitem__)
    if spreads[curve] > ALIKE:
        return None
    return first + round(ends[curve][-1]), curve if isinstance(curve, str) else f"power {curve:g}"


def _way(share: float, curve: float | str) -> float:
    """Return which part of its way to 0 a rate has gone, of which so much is left."""
    if isinstance(curve, str):
        return math.acos(2 * share - 1) / math.pi
    return float(1 - share ** (1 / curve))
