"""The columns of a table as a model reads them: numbers made alike in size, categories as whole numbers, gaps marked."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snugfit.data.bad_rows import BadRow, shorten
from snugfit.data.tables.table_cells import (
    are_numbers,
    as_plain_numbers,
    category_of,
    holds_dates,
    is_gap,
    missing_column,
    names_each_row,
    number_in,
    parsed_cell,
    written_number,
)
from snugfit.errors import DataError
from snugfit.units import counted

_QUARTERS = 4
_NAMED = 12
"""Columns of a table up to which an error names all that are left."""

Rows = Sequence[Mapping[str, Any]]
Faults = dict[int, BadRow]


@dataclass(frozen=True)
class Numbers:
    """A column of numbers.

    Args:
        middle, spread: the median, and what lies between the quarters; of training rows.
        edges: of bins with about as many training rows each, in units of `spread` from `middle`.
        gaps: whether training rows had gaps, so that the model is told of them.
    """

    name: str
    middle: float
    spread: float
    edges: tuple[float, ...]
    gaps: bool

    def encode(self, rows: Rows, faults: Faults) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the column as the model reads it, and a mark for each gap, which is read as the median.

        Large values are drawn in smoothly, to 3 at most.

        Args:
            faults: those of rows that cannot be used, by their places, to which more are added.
        Source: Holzmueller et al. 2024, arXiv:2407.04491 (robust scaling and smooth clipping).
        """
        values, gaps = np.full(len(rows), self.middle), np.zeros(len(rows))
        for place, row in enumerate(rows):
            try:
                number = number_in(self.name, row)
            except BadRow as bad:
                faults.setdefault(place, bad)
                continue
            if number is None:
                gaps[place] = 1.0
            else:
                values[place] = number
        return _drawn_in((values - self.middle) / self.spread), gaps


@dataclass(frozen=True)
class Categories:
    """A column of categories: value i of those in training rows is read as i + 1, any other and a gap as 0.

    Args:
        gaps: whether training rows had gaps, so that 0 was learned.
    """

    name: str
    values: tuple[str, ...]
    gaps: bool

    def encode(self, rows: Rows, faults: Faults) -> list[int]:
        """Return the number of each row's category."""
        number = {value: place for place, value in enumerate(self.values, 1)}
        codes = []
        for place, row in enumerate(rows):
            if self.name not in row:
                faults.setdefault(place, missing_column(self.name))
            codes.append(number.get(category_of(row.get(self.name)), 0))
        return codes


@dataclass(frozen=True)
class TableFormat:
    """The columns that a model reads, as they were in the rows that it was trained on."""

    numbers: tuple[Numbers, ...]
    categories: tuple[Categories, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        return (*(each.name for each in self.numbers), *(each.name for each in self.categories))

    @property
    def edges(self) -> list[list[float]]:
        """Edges of the bins of each number that the model reads: the columns', then those of marks for gaps."""
        return [*(list(each.edges) for each in self.numbers), *([] for each in self.numbers if each.gaps)]

    @property
    def sizes(self) -> list[int]:
        """The number of codes of each column of categories, that of what is not known counted."""
        return [len(each.values) + 1 for each in self.categories]

    def encode(self, rows: Rows) -> tuple[NDArray[np.float32], NDArray[np.int64], Faults]:
        """Return numbers, codes of categories, each of shape (rows, columns), and the faults of rows, by their places.

        Behind the numbers stands a mark for each gap of a column that had some in training. A row that has a fault cannot be used.
        """
        faults: Faults = {}
        numbers = np.zeros((len(rows), len(self.edges)), np.float32)
        codes = np.zeros((len(rows), len(self.categories)), np.int64)
        mark = len(self.numbers)
        for place, column in enumerate(self.numbers):
            numbers[:, place], gaps = column.encode(rows, faults)
            if column.gaps:
                numbers[:, mark] = gaps
                mark += 1
        for place, categories in enumerate(self.categories):
            codes[:, place] = categories.encode(rows, faults)
        return numbers, codes, faults

    def plain(self, row: Mapping[str, Any]) -> dict[str, float | str | None]:
        """Return a row's columns as numbers and texts, whatever its file has for them; None for a gap.

        Raises:
            BadRow: the row cannot be used.
        """
        numbers = {each.name: number_in(each.name, row) for each in self.numbers}
        return {**numbers, **{each.name: category_of(row.get(each.name)) or None for each in self.categories}}

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON holds it."""
        return asdict(self)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> TableFormat:
        """Return the format that `as_dict` gave."""
        return cls(
            tuple(Numbers(**{**each, "edges": tuple(each["edges"])}) for each in values["numbers"]),
            tuple(Categories(**{**each, "values": tuple(each["values"])}) for each in values["categories"]),
        )


def fit_format(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[str], categories: Sequence[str], bins: int
) -> TableFormat:
    """Return the format that rows to train on give their columns.

    Args:
        categories: columns that hold categories though they look like numbers.
        bins: of each column of numbers at most.
    Raises:
        DataError: nothing can be learned of a column: it is empty, holds dates, or a text of its own in about each row.
    """
    numbers: list[Numbers] = []
    texts: list[Categories] = []
    for name in columns:
        cells, others = [row.get(name) for row in rows], [each for each in columns if each != name]
        parsed = [] if name in categories else [parsed_cell(cell) for cell in cells]
        if parsed and are_numbers(parsed):
            numbers.append(_fit_numbers(name, parsed, bins, others))
        else:
            texts.append(_fit_categories(name, cells, others))
    return TableFormat(tuple(numbers), tuple(texts))


def _fit_numbers(
    name: str, parsed: Sequence[float | str | None], bins: int, others: Sequence[str]
) -> Numbers:
    values = sorted(value for value in parsed if isinstance(value, float) and math.isfinite(value))
    if not values:
        raise _empty(name, others)
    middle = statistics.median(values)
    quarter = len(values) // _QUARTERS
    spread = values[-1 - quarter] - values[quarter] or values[-1] - values[0] or 1.0
    places = [round(step * (len(values) - 1) / bins) for step in range(bins + 1)] if bins else []
    drawn = _drawn_in((np.array([values[place] for place in places]) - middle) / spread)
    edges = tuple(sorted(set(drawn.tolist())))
    return Numbers(name, middle, spread, edges if len(edges) > 2 else (), None in parsed)


def _fit_categories(name: str, cells: Sequence[Any], others: Sequence[str]) -> Categories:
    if holds_dates(cells):
        raise DataError(
            "data.columns",
            f"column '{name}' holds dates, such as {shorten(next(c for c in cells if not is_gap(c)))}, and a date is no number",
            f"{_to_leave_out(others)}, or write columns of what counts in it: the year, the day of the week, days since an event.",
        )
    counts = Counter(text for cell in cells if (text := category_of(cell)))
    if (number := written_number(cells)) is not None:
        raise DataError("data.columns", *as_plain_numbers(name, number))
    if not counts:
        raise _empty(name, others)
    if names_each_row(cells):
        raise DataError(
            "data.columns",
            f"column '{name}' has {len(counts):,} different values in {counted(len(cells), 'row')}, of which nothing can be learned",
            f"{_to_leave_out(others)}.",
        )
    return Categories(name, tuple(sorted(counts)), counts.total() < len(cells))


def _empty(name: str, others: Sequence[str]) -> DataError:
    return DataError(
        "data.columns",
        f"column '{name}' is empty in the rows to train on",
        f"{_to_leave_out(others)}.",
    )


def _to_leave_out(others: Sequence[str]) -> str:
    """Return, in words, how a column is left out.

    >>> _to_leave_out(["size", "kind"]), _to_leave_out(["size, in m"])
    ('Leave it out: data.columns=[size, kind]', 'Leave it out: name the columns to learn from in data.columns')
    """
    plain = 0 < len(others) <= _NAMED and all(each.isidentifier() for each in others)
    named = (
        f"data.columns=[{', '.join(others)}]" if plain else "name the columns to learn from in data.columns"
    )
    return f"Leave it out: {named}"


def label_number(name: str, row: Mapping[str, Any]) -> float:
    """Return the number to be learned of a row.

    Raises:
        BadRow: it has none.
    """
    if (number := number_in(name, row)) is None:
        raise BadRow("missing label", f"{name} is empty")
    return number


def _drawn_in(values: NDArray[np.float64]) -> NDArray[np.float64]:
    drawn: NDArray[np.float64] = values / np.sqrt(1 + (values / 3) ** 2)
    return drawn
