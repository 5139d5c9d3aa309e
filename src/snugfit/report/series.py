"""Numbers for charts: ticks, ranges, smoothing, thinning, and how a value is written. No drawing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

Point = tuple[float, float]

LARGEST = 1e150  # beyond it differences overflow; such a loss is as good as infinite


def is_plottable(value: float) -> bool:
    """Return whether a value has a place on an axis: finite, and not so large that arithmetic on it overflows."""
    return math.isfinite(value) and abs(value) < LARGEST


def as_number(value: object) -> float | None:
    """Return the value as a finite float, or None for anything else (booleans and "NaN" among them)."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not is_plottable(value):
        return None
    return float(value)


def tick_step(low: float, high: float, count: int = 5, whole: bool = False) -> float:
    """Return a step of 1, 2 or 5 times a power of ten that gives about `count` intervals, `count` · √2.5 at most."""
    rough = (high - low) / count
    magnitude = 10.0 ** math.floor(math.log10(rough))
    excess = rough / magnitude
    # the bounds are the geometric means of neighbouring factors
    factor = (
        1 if excess < math.sqrt(2) else 2 if excess < math.sqrt(10) else 5 if excess < math.sqrt(50) else 10
    )
    return max(1.0, factor * magnitude) if whole else factor * magnitude


def nice_ticks(low: float, high: float, count: int = 5, whole: bool = False) -> list[float]:
    """Round positions inside `[low, high]`, evenly spaced; `whole` for things that are counted.

    >>> nice_ticks(0.0, 1.0)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    >>> nice_ticks(0, 3, whole=True)
    [0.0, 1.0, 2.0, 3.0]
    """
    step = tick_step(low, high, count, whole)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    digits = _decimals(step)
    return [round(index * step, digits) + 0.0 for index in range(first, last + 1)]


def tick_labels(ticks: Sequence[float]) -> list[str]:
    """Return the ticks as text, all with the same number of decimals or all in powers of ten.

    >>> tick_labels([0.0, 0.5, 1.0])
    ['0.0', '0.5', '1.0']
    >>> tick_labels([0.0, 2e-05, 4e-05])
    ['0', '2e−5', '4e−5']
    """
    largest = max((abs(tick) for tick in ticks), default=0.0)
    if largest and not 1e-3 <= largest < 1e9:
        return [_scientific(tick) for tick in ticks]
    unit, suffix = (1e6, "M") if largest >= 1e6 else (1.0, "")
    step = min((b - a for a, b in pairwise(ticks)), default=largest or 1.0)
    digits = _decimals(step / unit)
    return [f"{tick / unit:,.{digits}f}{suffix}".replace("-", "−") for tick in ticks]


def format_number(value: float) -> str:
    """Return a measured value with four significant digits.

    >>> [format_number(value) for value in (0.91333, 1234.56, 5e-05, 3.0)]
    ['0.9133', '1,235', '5e−5', '3']
    """
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("∞" if value > 0 else "−∞")
    if value and not 1e-3 <= abs(value) < 1e9:
        return _scientific(value)
    if abs(value) >= 1000 or value == int(value):
        return f"{value:,.0f}".replace("-", "−")
    return f"{value:.4g}".replace("-", "−")


def padded(low: float, high: float, *, from_zero: bool = False) -> tuple[float, float]:
    """Return the ends of an axis for values between `low` and `high`, with a little air.

    The range is never empty, and air alone never takes an axis of non-negative values below zero.

    >>> padded(2.0, 2.0, from_zero=True)
    (0.0, 2.16)
    """
    if from_zero:
        low = min(low, 0.0)
    if high - low <= abs(high) * 1e-9:
        around = abs(high) * 0.1 or 0.5
        return low - around, high + around
    air = (high - low) * 0.08
    bottom = low if low == 0 else low - air
    return (0.0 if low >= 0 > bottom else bottom), high + air


def robust_range(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the lowest and highest plottable value, but without a few outliers that would flatten everything else.

    An end is drawn in only when it lies more than eight times the spread of the middle 96% away from it.

    >>> robust_range([1.0, 2.0] * 100 + [5000.0])
    (1.0, 4.0)
    """
    plottable = sorted(value for value in values if is_plottable(value))
    if not plottable:
        return None
    low, high = plottable[0], plottable[-1]
    if len(plottable) >= 20:
        bottom, top = plottable[len(plottable) // 50], plottable[-1 - len(plottable) // 50]
        spread = top - bottom
        if spread > 0 and high > top + 8 * spread:
            high = top + 2 * spread
        if spread > 0 and low < bottom - 8 * spread:
            low = bottom - 2 * spread
    return low, high


def smooth(points: Sequence[Point], reach: float) -> list[Point]:
    """Return two-sided exponential average that forgets over `reach` points each way, so that it does not lag.

    Gaps stay gaps and count for nothing in their neighbours. Sums only ever decay: unlike a running sum that
    subtracts, one huge value leaves no rounding error behind.
    """
    keep = math.exp(-1.0 / reach)
    sums, weights = [0.0] * len(points), [0.0] * len(points)
    for order in (range(len(points)), range(len(points) - 1, -1, -1)):
        total = weight = 0.0
        for index in order:
            value = points[index][1]
            sums[index] += total
            weights[index] += weight
            if is_plottable(value):
                total, weight = total + value, weight + 1.0
            total, weight = total * keep, weight * keep
    return [
        (x, (y + before_and_after) / (1.0 + weight) if is_plottable(y) else math.nan)
        for (x, y), before_and_after, weight in zip(points, sums, weights, strict=True)
    ]


def decimate(points: Sequence[Point], columns: int) -> list[Point]:
    """Return at most five points for each of `columns` stretches of x: first, lowest, highest, last, and one gap.

    What is drawn does not change as long as a column is not wider than a pixel, and no extreme is lost.
    """
    if len(points) <= 4 * columns:
        return list(points)
    start, end = points[0][0], points[-1][0]
    width = (end - start) / columns or 1.0
    drawn: list[Point] = []
    column: list[Point] = []
    current = 0
    for point in points:
        here = min(int((point[0] - start) / width), columns - 1)
        if here != current:
            drawn += _thinned(column)
            column, current = [], here
        column.append(point)
    return drawn + _thinned(column)


def _thinned(column: list[Point]) -> list[Point]:
    drawn = [index for index, point in enumerate(column) if is_plottable(point[1])]
    places = {index for index, point in enumerate(column) if not is_plottable(point[1])}
    places = {min(places)} if places else set()
    if drawn:
        places |= {drawn[0], drawn[-1]}
        places |= {
            min(drawn, key=lambda index: column[index][1]),
            max(drawn, key=lambda index: column[index][1]),
        }
    return [column[index] for index in sorted(places)]


def _decimals(step: float) -> int:
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    return digits if math.isclose(step, round(step, digits), rel_tol=1e-6) else digits + 1


def _scientific(value: float) -> str:
    if value == 0:
        return "0"
    mantissa, exponent = f"{value:.3e}".split("e")
    return f"{mantissa.rstrip('0').rstrip('.')}e{int(exponent)}".replace("-", "−")
