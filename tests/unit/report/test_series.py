from __future__ import annotations

import math
import random
from itertools import pairwise

import pytest

from snugfit.report.series import (
    as_number,
    decimate,
    format_number,
    nice_ticks,
    padded,
    robust_range,
    smooth,
    tick_labels,
)


@pytest.mark.parametrize(
    ("low", "high"),
    [
        (0.0, 1.0),
        (-3.7, 12.2),
        (1e-9, 4e-9),
        (0.99991, 0.99994),
        (0.0, 5.4e-5),
        (12_000.0, 4.1e6),
        (-2e30, 1e31),
    ],
)
@pytest.mark.parametrize("count", [3, 4, 5])
def test_ticks_are_few_round_even_and_inside(low: float, high: float, count: int) -> None:
    ticks = nice_ticks(low, high, count)
    step = ticks[1] - ticks[0]
    assert 2 <= len(ticks) <= count * 1.6 + 1
    assert low <= ticks[0] + step * 1e-6
    assert ticks[-1] <= high + step * 1e-6
    assert {round((b - a) / step, 3) for a, b in pairwise(ticks)} == {1.0}
    assert float(f"{step:.3e}".split("e")[0]) in (1.0, 2.0, 5.0)
    labels = tick_labels(ticks)
    assert len(set(labels)) == len(labels)


def test_ticks_of_counted_things_are_whole() -> None:
    assert nice_ticks(0.0, 1.0, whole=True) == [0.0, 1.0]
    assert nice_ticks(0.0, 2.0, whole=True) == [0.0, 1.0, 2.0]


@pytest.mark.parametrize("value", [0.0, 3.0, -0.25, 1e-12])
def test_an_axis_for_one_value_has_the_value_inside(value: float) -> None:
    low, high = padded(value, value)
    assert low < value < high
    assert nice_ticks(low, high)


def test_air_does_not_take_a_loss_below_zero() -> None:
    assert padded(0.01, 5.0)[0] == 0.0
    assert padded(-0.01, 5.0)[0] < -0.01


def test_decimation_keeps_every_extreme_and_both_ends() -> None:
    draw = random.Random(1)
    points = [(float(update), draw.gauss(0, 1)) for update in range(50_000)]
    points[31_415] = (31_415.0, 80.0)
    points[27_182] = (27_182.0, -80.0)
    drawn = decimate(points, 300)
    assert len(drawn) <= 5 * 300
    assert {points[31_415], points[27_182], points[0], points[-1]} <= set(drawn)
    assert drawn == sorted(drawn)
    assert extremes_by_column(drawn, points[-1][0] / 300) == extremes_by_column(points, points[-1][0] / 300)


def extremes_by_column(points: list[tuple[float, float]], width: float) -> list[tuple[float, float]]:
    columns: dict[int, list[float]] = {}
    for x, y in points:
        columns.setdefault(min(int(x / width), 299), []).append(y)
    return [(min(values), max(values)) for _, values in sorted(columns.items())]


def test_decimation_keeps_a_gap() -> None:
    points = [(float(update), math.nan if update == 5000 else 1.0) for update in range(10_000)]
    assert sum(math.isnan(y) for _, y in decimate(points, 50)) == 1


def test_smoothing_leaves_a_straight_line_in_place_and_gaps_open() -> None:
    line = [(float(update), math.nan if update == 50 else 2.0 * update) for update in range(101)]
    smoothed = smooth(line, 5.0)
    assert math.isnan(smoothed[50][1])
    assert sum(math.isnan(y) for _, y in smoothed) == 1
    # a one-sided average would lag by about 10; the tails of the two-sided one reach the ends with weight e^-5
    assert smoothed[25][1] == pytest.approx(50.0, abs=0.5)


def test_smoothing_forgets_a_huge_value_without_rounding_errors() -> None:
    points = [(float(update), 1e15 if update == 3 else 0.1) for update in range(1000)]
    assert smooth(points, 5.0)[-1][1] == pytest.approx(0.1, rel=1e-9)


def test_one_outlier_does_not_set_the_axis_but_a_trend_does() -> None:
    flat = [1.0 + 0.001 * (update % 100) for update in range(500)]
    assert robust_range([*flat, 1e6]) == (1.0, pytest.approx(1.3, abs=0.05))
    falling = [2.0 * math.exp(-update / 200) for update in range(1000)]
    assert robust_range(falling) == (min(falling), max(falling))
    assert robust_range([math.nan, math.inf]) is None


@pytest.mark.parametrize("value", [math.nan, -math.inf, 1e300, True, "NaN", "3", None, [1.0]])
def test_only_a_finite_number_is_a_number(value: object) -> None:
    assert as_number(value) is None


def test_numbers_are_written_for_people() -> None:
    assert format_number(-0.5) == "−0.5"
    assert format_number(math.nan) == "NaN"
    assert format_number(-math.inf) == "−∞"
    assert format_number(1e-7) == "1e−7"
