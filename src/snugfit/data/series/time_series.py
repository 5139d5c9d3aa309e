"""Many series in one long table: rows sorted by time, put on a grid of equal steps, and their faults."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snugfit.data.bad_rows import BadRow, Fault
from snugfit.data.series.time_steps import TimeStep, are_counted, check_counted, read_moment
from snugfit.data.sources import Table, check_columns
from snugfit.data.tables.table_cells import category_of, number_in
from snugfit.errors import DataError
from snugfit.units import counted

Key = tuple[str, ...]
"""A series' values in the columns that tell series apart."""

_LONGEST_GAP = 10
"""Times its rows that a series may be long: one wrong year would else make a grid that fills the memory."""

_FEW = 0.1
"""Share of a series' rows that may be far from the others and be faulty themselves; where more are, the step is wrong."""


@dataclass(frozen=True)
class SeriesColumns:
    """The columns of a long table.

    Args:
        series: those that tell series apart; none where there is one.
        known: numbers that are known ahead.
        past: numbers that are known up to now only.
    """

    series: tuple[str, ...]
    time: str
    label: str
    known: tuple[str, ...]
    past: tuple[str, ...]

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> SeriesColumns:
        """Return the columns that JSON holds."""
        return cls(
            tuple(values["series"]),
            values["time"],
            values["label"],
            tuple(values["known"]),
            tuple(values["past"]),
        )

    def check(self, table: Table, *, labelled: bool = True) -> None:
        """See that a table has them.

        Raises:
            DataError: a column is not there.
            SettingError: one is named twice.
        """
        wanted: dict[str, Sequence[str]] = {"data.time": [self.time], "data.label": [self.label]}
        wanted |= {"data.series": self.series, "data.known": self.known, "data.past": self.past}
        if not labelled:
            del wanted["data.label"]
        check_columns(table, wanted)


@dataclass(frozen=True)
class Moment:
    """A row of a series: its time, its target (NaN where it has none), its covariates, and its source with its index and line there."""

    time: int
    value: float
    covariates: tuple[float, ...]
    source: str
    row: int
    line: int


@dataclass
class Series:
    """A series on its grid.

    Args:
        first: place of its first step on the grid of all steps; `phase` tells which grid.
        values: the target at each step, NaN in a gap.
        covariates: shape (steps, columns), NaN in a gap.
        rows, lines: of each step; in a gap those of the step before it.
    """

    key: Key
    first: int
    phase: tuple[int, ...]
    values: NDArray[np.float64]
    covariates: NDArray[np.float64]
    rows: list[int]
    lines: list[int]

    @property
    def known_steps(self) -> int:
        """Steps up to the last one with a target."""
        there = np.flatnonzero(~np.isnan(self.values))
        return int(there[-1]) + 1 if len(there) else 0

    def moments(self, step: TimeStep, start: int, stop: int) -> list[int]:
        """Return the moments of its steps from `start` to `stop`, which may lie behind its end."""
        return [step.moment(self.first + place, self.phase) for place in range(start, stop)]


@dataclass
class LongTable:
    """The rows of a source by series, in the order of their times, and the faults of those that cannot be used."""

    table: Table
    counted: bool
    series: dict[Key, list[Moment]] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)

    @property
    def times(self) -> Iterable[list[int]]:
        """The times of each series."""
        return ([moment.time for moment in moments] for moments in self.series.values())


def read_long(
    table: Table, columns: SeriesColumns, *, labelled: bool, counted: bool | None = None
) -> LongTable:
    """Return the rows of a table by series; those of a time that a series has already are faults.

    Args:
        labelled: a row without a target is a fault; else a gap, or behind the last target a step to predict.
        counted: whether times are whole numbers, as in the rows that a model was trained on; by the rows where it is None.
    Raises:
        DataError: whole numbers are dates.
    """
    rows = table.rows
    if counted is None:
        counted = are_counted(row.get(columns.time) for row in rows)
        if counted:
            check_counted(columns.time, (row.get(columns.time) for row in rows), table.source)
    long = LongTable(table, counted, faults=list(table.faults))
    series: dict[Key, list[Moment]] = defaultdict(list)
    for index, (row, line) in enumerate(zip(rows, table.lines, strict=True)):
        try:
            key = tuple(_series_name(name, row) for name in columns.series)
            moment = _moment(columns, row, (table.source, index, line), labelled=labelled, counted=counted)
            series[key].append(moment)  # a series of none but faulty rows is none
        except BadRow as bad:
            long.faults.append(bad.at(table.source, line))
    for key, moments in series.items():
        moments.sort(key=lambda moment: moment.time)
        own = moments[:1]
        for before, after in pairwise(moments):
            if after.time > before.time:
                own.append(after)
                continue
            detail = f"{columns.time} is {table.rows[after.row][columns.time]}{_of(columns, key)}, as on line {before.line}"
            long.faults.append(Fault(table.source, after.line, "duplicate time", detail))
        long.series[key] = own
    return long


def on_grid(
    key: Key, moments: Sequence[Moment], step: TimeStep, columns: SeriesColumns
) -> tuple[Series, list[Fault]]:
    """Return a series on the grid that most of its rows stand on, and the faults of the others.

    Raises:
        DataError: it is nearly all gaps.
    """
    places = [step.place(moment.time) for moment in moments]
    phase = Counter(each for _, each in places).most_common(1)[0][0]
    faults = [
        Fault(
            moment.source,
            moment.line,
            "time off the grid",
            f"{columns.time} is {step.shown(moment.time)}, and the rows{_of(columns, key)} are {step} apart, such as at "
            f"{step.shown(step.moment(place, phase))}",
        )
        for moment, (place, each) in zip(moments, places, strict=True)
        if each != phase
    ]
    own = [(place, moment) for moment, (place, each) in zip(moments, places, strict=True) if each == phase]
    longest = _LONGEST_GAP * len(own) + 1000
    middle, median = own[len(own) // 2]
    far = [(place, moment) for place, moment in own if abs(place - middle) > longest]
    if far and len(far) <= max(1, _FEW * len(own)):
        faults += [
            Fault(
                moment.source,
                moment.line,
                "time far away",
                f"{columns.time} is {step.shown(moment.time)}, {abs(place - middle):,} steps of {step} from the middle row"
                f"{_of(columns, key)}, which is of {step.shown(median.time)}",
            )
            for place, moment in far
        ]
        own = [each for each in own if abs(each[0] - middle) <= longest]
    first, steps = own[0][0], own[-1][0] - own[0][0] + 1
    if steps > 2 * longest:
        raise DataError(
            "data.frequency",
            f"{counted(len(own), 'row')}{_of(columns, key)} in {own[0][1].source} spread over {counted(steps, 'step')} of {step}",
            "Correct the times of the rows, or name the step between them.",
        )
    values = np.full(steps, np.nan)
    covariates = np.full((steps, len(columns.known) + len(columns.past)), np.nan)
    rows, lines = [0] * steps, [0] * steps
    for place, moment in own:
        at = place - first
        values[at], rows[at], lines[at] = moment.value, moment.row, moment.line
        covariates[at] = moment.covariates
    for at in range(1, steps):
        if not lines[at]:
            rows[at], lines[at] = rows[at - 1], lines[at - 1]
    return Series(key, first, phase, values, covariates, rows, lines), faults


def _of(columns: SeriesColumns, key: Key) -> str:
    """Return which series it is, in words."""
    return f" of {shown_key(columns, key)}" if key else ""


def shown_key(columns: SeriesColumns, key: Key) -> str:
    """Return a series in words.

    >>> shown_key(SeriesColumns(("shop",), "day", "sold", (), ()), ("a",))
    "shop 'a'"
    """
    named = ", ".join(f"{name} '{value}'" for name, value in zip(columns.series, key, strict=True))
    return named or "the series"


def _series_name(column: str, row: Mapping[str, Any]) -> str:
    if name := category_of(row.get(column)):
        return name
    raise BadRow("missing series", f"{column} is empty")


def _moment(
    columns: SeriesColumns,
    row: Mapping[str, Any],
    place: tuple[str, int, int],
    *,
    labelled: bool,
    counted: bool,
) -> Moment:
    time = read_moment(columns.time, row, counted=counted)
    value = _number(columns.label, row) if labelled or columns.label in row else None
    if value is None and labelled:
        raise BadRow("missing target", f"{columns.label} is empty")
    known = [_covariate(name, row) for name in columns.known]
    # behind the last target, what is known up to now only is not known
    past = [_covariate(name, row) if value is not None else np.nan for name in columns.past]
    return Moment(time, np.nan if value is None else value, (*known, *past), *place)


def _covariate(name: str, row: Mapping[str, Any]) -> float:
    if (number := _number(name, row)) is None:
        raise BadRow("missing covariate", f"{name} is empty")
    return number


_MOST = 1e100
"""The largest magnitude of a number, so that squares of differences are numbers too."""


def _number(name: str, row: Mapping[str, Any]) -> float | None:
    """Return the number in a column of a row; None for a gap."""
    number = number_in(name, row, ": write numbers as 1234.5, and yes and no as 1 and 0")
    if number is not None and abs(number) > _MOST:
        raise BadRow("number too large", f"{name} is {number:g}, whose square is no number any more")
    return number
