"""Time stamps of series: moments in cells, the step between neighbours, and the grid of moments a step apart."""

from __future__ import annotations

import calendar
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any

from snugfit.data.bad_rows import BadRow, shorten
from snugfit.data.tables.table_cells import is_gap
from snugfit.errors import DataError, SettingError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_EPOCH = datetime(1970, 1, 1)
_MICROSECOND = timedelta(microseconds=1)
_SECOND = 1_000_000
_SIZES = {
    "second": _SECOND,
    "minute": 60 * _SECOND,
    "hour": 3600 * _SECOND,
    "day": 86_400 * _SECOND,
    "week": 7 * 86_400 * _SECOND,
}
_MONTHS = {"month": 1, "quarter": 3, "year": 12}
STEPS = "step"
UNITS = (*_SIZES, *_MONTHS, STEPS)
_FREQUENCY = re.compile(r"\s*(\d+)?\s*([a-z]+?)s?\s*")
_MONTH = re.compile(r"\d{4}-\d{2}")
_REGULAR = 0.5
"""Share of neighbours that lie whole steps apart, below which there is no frequency."""
_LONGEST_DAY = 288
"""Steps of a day up to which a day is the season: five minutes."""
_EPOCH_WEEKDAY = 3
"""Days from a Monday to 1970-01-01."""
_YEAR_DAYS = 365.2425


@dataclass(frozen=True)
class TimeStep:
    """The time between neighbours of a series: so many of a unit.

    A moment is a whole number: microseconds since 1970, or for steps that are only counted their number.

    >>> str(TimeStep(1, "hour")), str(TimeStep(15, "minute")), TimeStep(1, "hour").season
    ('1 hour', '15 minutes', 24)
    """

    count: int
    unit: str

    def __str__(self) -> str:
        return f"{self.count} {self.unit}{'' if self.count == 1 else 's'}"

    @property
    def counted(self) -> bool:
        """True where moments are numbers, and no dates."""
        return self.unit == STEPS

    @property
    def season(self) -> int:
        """Steps of the usual season: a day of hours, a week of days, a year of weeks, months or quarters; 1 where there is none."""
        if self.unit in _MONTHS:
            months = self.count * _MONTHS[self.unit]
            return 12 // months if 12 % months == 0 else 1
        if self.counted:
            return 1
        size = self.size
        if size < _SIZES["day"]:
            whole = "day" if _SIZES["day"] // size <= _LONGEST_DAY else "hour"
            return _SIZES[whole] // size if _SIZES[whole] % size == 0 else 1
        return {_SIZES["day"]: 7, _SIZES["week"]: 52}.get(size, 1)

    def place(self, moment: int) -> tuple[int, tuple[int, ...]]:
        """Return the place of a moment on the grid of all steps, and its phase: what moments of one grid have in common."""
        if self.unit not in _MONTHS:
            place, phase = divmod(moment, self.size)
            return place, (phase,)
        day = moment_date(moment)
        months = self.count * _MONTHS[self.unit]
        place, month = divmod(day.year * 12 + day.month - 1, months)
        last = day.day == calendar.monthrange(day.year, day.month)[1]
        return place, (month, 31 if last else day.day, moment % _SIZES["day"])

    def moment(self, place: int, phase: Sequence[int]) -> int:
        """Return the moment at a place of a grid."""
        if self.unit not in _MONTHS:
            return place * self.size + phase[0]
        month, day, time = phase
        year, month = divmod(place * self.count * _MONTHS[self.unit] + month, 12)
        last = calendar.monthrange(year, month + 1)[1]
        midnight = datetime(year, month + 1, min(day, last))
        return (midnight - _EPOCH) // _MICROSECOND + time

    def shown(self, moment: int) -> str | int:
        """Return a moment as a file holds it: a date where all moments are midnights, a date and a time, or a number."""
        if self.counted:
            return moment
        when = moment_date(moment)
        days = self.unit in _MONTHS or self.size % _SIZES["day"] == 0
        return when.date().isoformat() if days and when == datetime(*when.timetuple()[:3]) else str(when)

    @property
    def size(self) -> int:
        """Return its length in microseconds, or in counted steps; 1 for months."""
        return self.count * _SIZES.get(self.unit, 1)


def moment_date(moment: int) -> datetime:
    """Return the date and time of a moment, in UTC where the file has a zone."""
    return _EPOCH + moment * _MICROSECOND


def are_counted(cells: Iterable[Any]) -> bool:
    """Return whether the times of a column are whole numbers, and no dates.

    >>> are_counted([1, "2", 3.0]), are_counted(["2026-01-31"])
    (True, False)
    """
    values = [cell for cell in itertools.islice(cells, 1000) if not is_gap(cell)]
    return bool(values) and sum(_whole(cell) is not None for cell in values) > len(values) / 2


def check_counted(name: str, cells: Iterable[Any], source: str) -> None:
    """See that whole numbers of a column count steps, and are no dates written as numbers, whose months would be gaps.

    Raises:
        DataError: each of them is a date.

    >>> check_counted("t", [1, 2, 20260131], "rows.csv")
    """
    numbers = [str(number) for cell in cells if (number := _whole(cell)) is not None]
    forms = {8: "%Y%m%d", 6: "%Y%m"}
    form = forms.get(len(numbers[0])) if numbers else None
    if form is None or not all(_is_date(number, form) for number in numbers):
        return
    when = datetime.strptime(numbers[0], form)
    written = f"{when:%Y-%m-%d}" if form == forms[8] else f"{when:%Y-%m}"
    raise DataError(
        "data.time",
        f"'{name}' of {source} holds dates written as whole numbers, such as {numbers[0]}, which are not equal steps apart",
        f"Write {written}; or where they count steps, count from 0.",
    )


def _is_date(number: str, form: str) -> bool:
    try:
        return (
            len(number) == len(datetime(1970, 1, 1).strftime(form))
            and 1900 <= datetime.strptime(number, form).year < 2200
        )
    except ValueError:
        return False


def read_moment(name: str, row: Mapping[str, Any], *, counted: bool) -> int:
    """Return the moment in a column of a row.

    Args:
        counted: whether it is a whole number, or else a date.
    Raises:
        BadRow: there is none, or it cannot be read.

    >>> read_moment("t", {"t": "1970-01-01T00:00:01"}, counted=False)
    1000000
    """
    cell = row.get(name)
    if is_gap(cell):
        raise BadRow("missing time", f"{name} is empty")
    moment = _whole(cell) if counted else _date(cell)
    if moment is None:
        form = (
            "no whole number as in other rows" if counted else "no date: write 2026-01-31 or 2026-01-31 10:00"
        )
        raise BadRow("unusable time", f"{name} is {shorten(cell)!r}, {form}")
    return moment


def read_frequency(text: str) -> TimeStep:
    """Return the step that a recipe names.

    Raises:
        SettingError: it names none.

    >>> read_frequency("15 minutes"), read_frequency("day")
    (TimeStep(count=15, unit='minute'), TimeStep(count=1, unit='day'))
    """
    match = _FREQUENCY.fullmatch(text)
    count = int(match[1] or 1) if match else 0
    if match is None or match[2] not in UNITS or not count:
        raise SettingError(
            "data.frequency",
            f"'{text}' is no step",
            f"Write a number and a unit, such as 15 minutes; units are {', '.join(UNITS)}.",
        )
    return TimeStep(count, match[2])


def infer_step(series: Iterable[Sequence[int]], *, counted: bool, source: str) -> TimeStep:
    """Return the step that most neighbours of sorted moments are apart.

    Args:
        counted: whether moments are numbers, and no dates.
        source: name of the rows, for the error.
    Raises:
        DataError: neighbours are not whole steps apart, or there are none.
    """
    apart: Counter[int] = Counter()
    months: Counter[int] = Counter()
    for moments in series:
        apart.update(after - before for before, after in itertools.pairwise(moments) if after > before)
        if not counted:
            numbers = [when.year * 12 + when.month for when in map(moment_date, moments)]
            months.update(after - before for before, after in itertools.pairwise(numbers))
    if not apart:
        raise DataError(
            "data.time",
            f"no series in {source} has two different times",
            "Name the column of times, and the columns that tell series apart in data.series.",
        )
    usual, count = apart.most_common(1)[0]
    if not counted and usual >= 28 * _SIZES["day"] and months:
        usual_months, monthly = months.most_common(1)[0]
        if usual_months and monthly > count:
            return _of_months(usual_months)
    whole = sum(times for each, times in apart.items() if each % usual == 0)
    if whole < _REGULAR * apart.total():
        raise DataError(
            "data.frequency",
            f"times in {source} follow no step: {count:,} of {apart.total():,} neighbours are the most that lie equally far apart",
            "Write one row a step: sum or average the rows of each hour, day or month first. Or name the step.",
        )
    if counted:
        return TimeStep(usual, STEPS)
    unit = next((name for name in reversed(_SIZES) if usual % _SIZES[name] == 0), None)
    if unit is None:
        raise DataError(
            "data.frequency",
            f"most times in {source} lie {usual / _SECOND:g} s apart",
            "Write times in whole seconds, or number the rows of each series.",
        )
    return TimeStep(usual // _SIZES[unit], unit)


def calendar_columns(moments: NDArray[np.int64], step: TimeStep) -> NDArray[np.float32]:
    """Return the calendar of moments as sines and cosines, shape (moments, columns): of the day, the week and the year, those longer than a step.

    Numbers that only count the steps have no calendar.
    """
    import numpy as np

    if step.counted:
        return np.zeros((len(moments), 0), np.float32)
    days = moments / _SIZES["day"]
    long = step.unit in _MONTHS
    waves: list[NDArray[np.float64]] = []
    for shorter, phases, harmonics in (
        (not long and step.size < _SIZES["day"], days, 2),
        (not long and step.size < _SIZES["week"], (days + _EPOCH_WEEKDAY) / 7, 3),
        (step.unit != "year", days / _YEAR_DAYS, 2),
    ):
        for number in range(1, harmonics + 1) if shorter else ():
            angle = 2 * np.pi * number * phases
            waves += [np.sin(angle), np.cos(angle)]
    return np.array(waves, np.float32).reshape(len(waves), len(moments)).T.copy()


def _of_months(months: int) -> TimeStep:
    unit = "year" if months % 12 == 0 else "quarter" if months % 3 == 0 else "month"
    return TimeStep(months // _MONTHS[unit], unit)


def _whole(cell: Any) -> int | None:
    """Return a whole number, however it is written."""
    if isinstance(cell, (date, bool)):
        return None
    try:
        number = float(cell)
        return int(number) if number.is_integer() else None
    except (TypeError, ValueError, OverflowError):
        return None


def _date(cell: Any) -> int | None:
    """Return the moment of a date, or of its text in the form of ISO 8601."""
    if isinstance(cell, str):
        text = cell.strip()
        try:
            when = datetime.fromisoformat(f"{text}-01" if _MONTH.fullmatch(text) else text)
        except ValueError:
            return None
        if text.isdigit():  # 20260131 may as well be a number
            return None
    elif isinstance(cell, datetime):
        when = cell
    elif isinstance(cell, date):
        when = datetime(cell.year, cell.month, cell.day)
    else:
        return None
    if when.tzinfo is not None:
        try:
            when = when.astimezone(UTC).replace(tzinfo=None)
        except OverflowError:  # at an end of the calendar
            return None
    return (when - _EPOCH) // _MICROSECOND
