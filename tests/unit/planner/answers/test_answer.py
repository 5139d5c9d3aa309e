from __future__ import annotations

import random

from snugfit.planner.answers.answer import Band, Timeline


def timeline(levels: list[int], seconds: list[float] | None = None) -> Timeline:
    times = tuple(seconds or [float(point) for point in range(len(levels))])
    return Timeline(
        ("forward",) * len(levels), times, {"weights": (10,) * len(levels), "other": tuple(levels)}
    )


def test_a_spike_of_one_point_in_a_hundred_thousand_is_never_lost() -> None:
    draw = random.Random(0)
    for spike in (0, 1, 49_999, 99_998, 99_999, *(draw.randrange(100_000) for _ in range(5))):
        levels = [draw.randrange(1000) for _ in range(100_000)]
        levels[spike] = 1_001
        found = timeline(levels).highest(600)
        assert len(found) == 600
        assert spike in found


def test_each_column_has_the_highest_level_in_force_within_it() -> None:
    """Against every instant of a fine grid, one by one."""
    draw = random.Random(1)
    seconds = sorted(draw.randrange(1000) / 10 for _ in range(40))
    seconds[0], seconds[-1] = 0.0, 100.0
    line = timeline([draw.randrange(100) for _ in seconds], seconds)
    found, total = line.highest(10), line.totals()
    for column, point in enumerate(found):
        inside = {
            number
            for number, at in enumerate(seconds)
            if column * 10 <= at < (column + 1) * 10 or at == 100 == (column + 1) * 10
        }
        before = [number for number, at in enumerate(seconds) if at < column * 10]
        assert total[point] == max(total[number] for number in inside | set(before[-1:]))


def test_a_stretch_without_points_keeps_the_last_level_not_the_highest() -> None:
    assert timeline([1, 9, 3, 2], [0.0, 0.1, 0.15, 1.0]).highest(5) == [1, 2, 2, 2, 2]


def test_points_lie_by_their_number_where_no_time_passes() -> None:
    assert timeline([1, 2, 3], [4.0, 4.0, 4.0]).places() == [0.0, 0.5, 1.0]
    assert timeline([1], [0.0]).places() == [0.0]
    assert timeline([7], [0.0]).highest(3) == [0, 0, 0]


def test_bands_cover_the_update_without_gap_or_overlap() -> None:
    line = Timeline(("a", "a", "b", "a"), (0.0, 1.0, 2.0, 4.0), {"weights": (1, 1, 1, 1)})
    assert line.bands() == [Band("a", 0.0, 0.5), Band("b", 0.5, 1.0), Band("a", 1.0, 1.0)]
