"""Moments in cells, steps between them, and grids: beside the calendar of Python."""

from __future__ import annotations

from datetime import date, datetime, timedelta, timezone

import numpy as np
import pytest

from snugfit.data.bad_rows import BadRow
from snugfit.data.series.time_steps import (
    TimeStep,
    calendar_columns,
    infer_step,
    moment_date,
    read_frequency,
    read_moment,
)
from snugfit.errors import DataError, SettingError


def moments(*texts: str) -> list[int]:
    return [read_moment("t", {"t": text}, counted=False) for text in texts]


@pytest.mark.parametrize(
    "cell",
    [
        "2026-03-01 02:00",
        "2026-03-01T02:00:00",
        "2026-03-01T02:00:00Z",
        "2026-03-01T04:00+02:00",
        datetime(2026, 3, 1, 2),
        datetime(2026, 3, 1, 4, tzinfo=timezone(timedelta(hours=2))),
    ],
)
def test_one_moment_is_read_from_each_of_its_forms(cell: object) -> None:
    moment = read_moment("t", {"t": cell}, counted=False)
    assert moment_date(moment) == datetime(2026, 3, 1, 2)


def test_days_and_months_are_midnights() -> None:
    assert (
        moments("2026-03-01")
        == moments("2026-03")
        == [read_moment("t", {"t": date(2026, 3, 1)}, counted=False)]
    )


@pytest.mark.parametrize(
    ("cell", "counted", "words"),
    [
        ("01.03.2026", False, "t is '01.03.2026', no date: write 2026-01-31"),
        ("20260301", False, "no date"),
        ("2026-13-01", False, "no date"),
        ("", False, "t is empty"),
        (None, True, "t is empty"),
        ("1.5", True, "no whole number as in other rows"),
        ("monday", True, "no whole number as in other rows"),
    ],
)
def test_what_is_no_time_says_so(cell: object, counted: bool, words: str) -> None:
    with pytest.raises(BadRow, match=words):
        read_moment("t", {"t": cell}, counted=counted)


@pytest.mark.parametrize(
    ("texts", "step", "season"),
    [
        (["2026-01-01 00:00", "2026-01-01 00:15", "2026-01-01 00:30", "2026-01-01 03:00"], "15 minutes", 96),
        (["2026-01-01 00:00", "2026-01-01 00:01", "2026-01-01 00:02"], "1 minute", 60),
        (["2026-01-01 00:00", "2026-01-01 01:00", "2026-01-01 02:00"], "1 hour", 24),
        (["2026-02-27", "2026-02-28", "2026-03-01", "2026-03-04"], "1 day", 7),
        (["2026-01-05", "2026-01-12", "2026-01-19"], "1 week", 52),
        (["2025-12-31", "2026-01-31", "2026-02-28", "2026-03-31", "2026-04-30"], "1 month", 12),
        (["2026-01-15", "2026-02-15", "2026-03-15"], "1 month", 12),
        (["2025-03-31", "2025-06-30", "2025-09-30", "2025-12-31"], "1 quarter", 4),
        (["2023-01-01", "2024-01-01", "2025-01-01"], "1 year", 1),
        ([f"{date(2026, 1, 1) + timedelta(days=28 * number)}" for number in range(30)], "4 weeks", 1),
    ],
)
def test_the_step_of_rows_is_inferred(texts: list[str], step: str, season: int) -> None:
    inferred = infer_step([moments(*texts)], counted=False, source="a.csv")
    assert (str(inferred), inferred.season) == (step, season)
    assert read_frequency(step) == inferred


@pytest.mark.parametrize(
    ("step", "texts"),
    [
        (TimeStep(1, "month"), ["2025-12-31", "2026-01-31", "2026-02-28", "2026-03-31", "2026-04-30"]),
        (TimeStep(1, "quarter"), ["2025-02-15", "2025-05-15", "2025-08-15"]),
        (TimeStep(1, "year"), ["2024-02-29", "2025-02-28", "2026-02-28"]),
        (TimeStep(6, "hour"), ["2026-01-01 03:00", "2026-01-01 09:00", "2026-01-01 15:00"]),
    ],
)
def test_neighbours_stand_at_neighbouring_places_of_one_grid(step: TimeStep, texts: list[str]) -> None:
    own = moments(*texts)
    places = [step.place(moment) for moment in own]
    first, phase = places[0]
    assert places == [(first + number, phase) for number in range(len(own))]
    assert [step.moment(place, phase) for place, phase in places] == own


def test_rows_without_a_frequency_are_refused() -> None:
    drawn = np.random.default_rng(0).integers(0, 10**6, 50).cumsum().tolist()
    with pytest.raises(DataError, match=r"data.frequency: times in a.csv follow no step: 1 of 49 neighbours"):
        infer_step([drawn], counted=True, source="a.csv")
    with pytest.raises(DataError, match=r"data.time: no series in a.csv has two different times"):
        infer_step([[3], [4]], counted=True, source="a.csv")


@pytest.mark.parametrize("text", ["fortnight", "0 days", "1.5 hours", ""])
def test_what_names_no_step_is_refused(text: str) -> None:
    with pytest.raises(SettingError, match=f"data.frequency: '{text}' is no step"):
        read_frequency(text)


@pytest.mark.parametrize(
    ("step", "columns"),
    [
        (TimeStep(1, "hour"), 14),
        (TimeStep(1, "day"), 10),
        (TimeStep(1, "week"), 4),
        (TimeStep(1, "month"), 4),
    ],
)
def test_the_calendar_repeats_itself_after_a_day_a_week_and_a_year(step: TimeStep, columns: int) -> None:
    start = moments("2026-01-05")[0]
    day = 86_400 * 10**6
    made = calendar_columns(np.array([start, start + day, start + 7 * day, start + 146_097 * day]), step)
    assert made.shape == (4, columns)
    if columns == 14:
        np.testing.assert_allclose(made[0, :4], made[1, :4], atol=1e-4)
        np.testing.assert_allclose(made[0, 4:10], made[2, 4:10], atol=1e-3)
        assert np.abs(made[0, 4:10] - made[1, 4:10]).max() > 0.5
    np.testing.assert_allclose(made[0, -4:], made[3, -4:], atol=1e-3)
    assert calendar_columns(np.arange(3), TimeStep(1, "step")).shape == (3, 0)


@pytest.mark.parametrize("text", ["0001-01-01T00:00+14:00", "9999-12-31T23:00-10:00"])
def test_a_time_beyond_the_calendar_in_another_zone_is_no_time(text: str) -> None:
    with pytest.raises(BadRow, match="no date"):
        read_moment("t", {"t": text}, counted=False)
