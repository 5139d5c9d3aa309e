"""The columns of a table as a model reads them: numbers made alike in size, categories as whole numbers, gaps marked."""

from __future__ import annotations

import math
import re
import statistics
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from snugfit.data.bad_rows import BadRow, shorten
from snugfit.errors import DataError

GAPS = {"", "na", "n/a", "nan", "null", "none", "?"}
"""Texts of a cell that holds nothing, in small letters."""

_NUMBERS = 0.9
"""A column of which so much are numbers is one of numbers, and the rest are faults."""
_DATE = re.compile(r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{4}")
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+")
_MOST_CATEGORIES = 1000
_QUARTERS = 4


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

    def value(self, cell: Any) -> tuple[float, bool]:
        """Return a cell as the model reads it, and whether it is a gap, which is read as the median.

        Large values are drawn in smoothly, to 3 at most.

        Raises:
            BadRow: it is no number.
        Source: Holzmueller et al. 2024, arXiv:2407.04491 (robust scaling and smooth clipping).
        """
        number = _number(self.name, cell)
        return (0.0, True) if number is None else (_drawn_in((number - self.middle) / self.spread), False)


@dataclass(frozen=True)
class Categories:
    """A column of categories: value i of those in training rows is read as i + 1, any other and a gap as 0.

    Args:
        gaps: whether training rows had gaps, so that 0 was learned.
    """

    name: str
    values: tuple[str, ...]
    gaps: bool

    def code(self, cell: Any) -> int:
        """Return the number of a cell's category."""
        text = _text(cell)
        place = bisect_left(self.values, text) if text else len(self.values)
        return place + 1 if place < len(self.values) and self.values[place] == text else 0


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

    def read(self, row: Mapping[str, Any]) -> tuple[list[float], list[int]]:
        """Return a row's numbers, with a mark for each gap of a column that had some in training, and its codes.

        Raises:
            BadRow: a column is missing, or what stands in one of numbers is none.
        """
        for name in self.columns:
            if name not in row:
                raise BadRow("missing column", f"the row has no '{name}'")
        values = [each.value(row[each.name]) for each in self.numbers]
        marks = [float(gap) for each, (_, gap) in zip(self.numbers, values, strict=True) if each.gaps]
        return [*(value for value, _ in values), *marks], [
            each.code(row[each.name]) for each in self.categories
        ]

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
        cells = [row.get(name) for row in rows]
        if name not in categories and holds_numbers(cells):
            numbers.append(_fit_numbers(name, cells, bins))
        else:
            texts.append(_fit_categories(name, cells))
    return TableFormat(tuple(numbers), tuple(texts))


def holds_numbers(cells: Sequence[Any]) -> bool:
    """Return whether a column is one of numbers: nine of ten of its cells are, gaps aside.

    >>> holds_numbers([1, "2.5", "NA", None]), holds_numbers(["a", "1"]), holds_numbers([True, False])
    (True, False, False)
    """
    values = [cell for cell in cells if not is_gap(cell)]
    return sum(_as_number(cell) is not None for cell in values) >= _NUMBERS * max(1, len(values))


def holds_dates(cells: Sequence[Any]) -> bool:
    """Return whether the cells of a column are dates, gaps aside.

    >>> holds_dates(["2026-01-31", "2026-02-01 10:00"]), holds_dates(["1.5", "2"])
    (True, False)
    """
    values = [cell for cell in cells if not is_gap(cell)]
    return bool(values) and all(
        hasattr(cell, "isoformat") or (isinstance(cell, str) and _DATE.match(cell.strip())) for cell in values
    )


def names_each_row(cells: Sequence[Any]) -> bool:
    """Return whether a column of texts has one of its own in about each row, so that nothing can be learned of it.

    >>> names_each_row([f"name {number}" for number in range(50)]), names_each_row(["a", "b"] * 25)
    (True, False)
    """
    values = [text for cell in cells if (text := _text(cell))]
    kinds = len(set(values))
    return kinds > _MOST_CATEGORIES or (len(values) >= 20 and kinds > 0.8 * len(values))


def is_gap(cell: Any) -> bool:
    """Return whether a cell holds nothing.

    >>> is_gap(" NA "), is_gap(float("nan")), is_gap(0)
    (True, True, False)
    """
    if isinstance(cell, str):
        return cell.strip().casefold() in GAPS
    return cell is None or cell != cell  # NaN, of NumPy's and pandas' kinds too


def _fit_numbers(name: str, cells: Sequence[Any], bins: int) -> Numbers:
    values = sorted(number for cell in cells if not is_gap(cell) and (number := _as_number(cell)) is not None)
    if not values:
        raise DataError("data.columns", f"column '{name}' is empty in the rows to train on", "Leave it out.")
    middle = statistics.median(values)
    quarter = len(values) // _QUARTERS
    spread = values[-1 - quarter] - values[quarter] or values[-1] - values[0] or 1.0
    drawn = [_drawn_in((value - middle) / spread) for value in values]
    places = [round(step * (len(drawn) - 1) / bins) for step in range(bins + 1)]
    edges = tuple(sorted({drawn[place] for place in places}))
    return Numbers(name, middle, spread, edges if len(edges) > 2 else (), len(values) < len(cells))


def _fit_categories(name: str, cells: Sequence[Any]) -> Categories:
    if holds_dates(cells):
        raise DataError(
            "data.columns",
            f"column '{name}' holds dates, such as {shorten(next(c for c in cells if not is_gap(c)))}, and a date is no number",
            "Leave it out, or write columns of what counts in it: the year, the day of the week, days since an event.",
        )
    counts = Counter(text for cell in cells if (text := _text(cell)))
    if counts and all(map(_DECIMAL_COMMA.fullmatch, counts)):
        raise DataError(
            "data.columns",
            f"column '{name}' holds numbers with a decimal comma, such as {next(iter(counts))}",
            "Write points, as 1.5.",
        )
    if not counts:
        raise DataError("data.columns", f"column '{name}' is empty in the rows to train on", "Leave it out.")
    if names_each_row(cells):
        raise DataError(
            "data.columns",
            f"column '{name}' has {len(counts):,} different values in {len(cells):,} rows, of which nothing can be learned",
            "Leave it out: name the columns to learn from in data.columns.",
        )
    return Categories(name, tuple(sorted(counts)), counts.total() < len(cells))


def number_of(name: str, cell: Any) -> float:
    """Return the number to be learned that a cell holds.

    Raises:
        BadRow: it holds none.
    """
    if (number := _number(name, cell)) is None:
        raise BadRow("missing label", f"{name} is empty")
    return number


def _number(name: str, cell: Any) -> float | None:
    """Return the number in a cell; None for a gap.

    Raises:
        BadRow: something else stands there.
    """
    if is_gap(cell):
        return None
    number = _as_number(cell)
    if number is None:
        raise BadRow(
            "not a number",
            f"{name} is {shorten(cell)!r}, no number as in other rows (a column of both is named in data.categories)",
        )
    if not math.isfinite(number):
        raise BadRow("infinite number", f"{name} is {number}")
    return number


def _as_number(cell: Any) -> float | None:
    if isinstance(cell, bool) or type(cell).__name__ in ("bool", "bool_"):
        return None
    try:
        return float(cell)
    except (TypeError, ValueError):
        return None


def _drawn_in(value: float) -> float:
    return value / math.sqrt(1 + (value / 3) ** 2)


def _text(cell: Any) -> str:
    """Return a category's name: a whole number is one name however it is written; empty for a gap.

    >>> _text(3.0), _text("3"), _text(" a ")
    ('3', '3', 'a')
    """
    if is_gap(cell):
        return ""
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return str(cell).strip()
