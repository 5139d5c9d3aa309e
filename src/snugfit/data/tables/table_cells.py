"""The cells of a table: numbers, categories, dates, and what stands for nothing."""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Mapping, Sequence
from typing import Any

from snugfit.data.bad_rows import BadRow, shorten

GAPS = {"", "na", "n/a", "nan", "null", "none", "?"}
"""Texts of a cell that holds nothing, in small letters."""

_NUMBERS = 0.9
"""A column of which so much are numbers is one of numbers, and the rest are faults."""
_DATE = re.compile(r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{4}")
_WRITTEN_NUMBER = re.compile(r"[+-]?(\d+([.,]\d+)?|\d{1,3}([.,' \u00a0\u202f]\d{3})+([.,]\d+)?)")
_MOST_CATEGORIES = 1000
_NOTHING_OF_PANDAS = ("NAType", "NaTType")
"""Types of what pandas holds in an empty cell, which cannot be compared."""


def holds_numbers(cells: Sequence[Any]) -> bool:
    """Return whether a column is one of numbers: nine of ten of its cells are, gaps aside.

    >>> holds_numbers([1, "2.5", "NA", None]), holds_numbers(["a", "1"]), holds_numbers([True, False])
    (True, False, False)
    """
    return are_numbers([parsed_cell(cell) for cell in cells])


def are_numbers(parsed: Sequence[float | str | None]) -> bool:
    """Return whether nine of ten cells are numbers, gaps aside; the cells are parsed ones."""
    count = sum(isinstance(value, float) for value in parsed)
    return count >= _NUMBERS * max(1, len(parsed) - parsed.count(None))


def written_number(cells: Sequence[Any]) -> str | None:
    """Return a cell of a column of numbers that are read as texts, for a decimal comma or separated thousands; None of another column.

    >>> written_number(["950.00", "1,234.50", ""]), written_number(["0,5", "1,25"]), written_number(["a", "0,5"]), written_number(["1.5"])
    ('1,234.50', '0,5', None, None)
    """
    texts = [text for cell in cells if (text := category_of(cell))]
    if not texts or not all(map(_WRITTEN_NUMBER.fullmatch, texts)):
        return None
    return next((text for text in texts if isinstance(parsed_cell(text), str)), None)


def as_plain_numbers(column: str, number: str) -> tuple[str, str]:
    """Return what is wrong with a column of numbers that are read as texts, and the remedy."""
    return (
        f"column '{column}' holds numbers that are read as texts, such as {number}",
        "Write them with digits and a point alone, as 1234.5.",
    )


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
    values = [text for cell in cells if (text := category_of(cell))]
    kinds = len(set(values))
    return kinds > _MOST_CATEGORIES or (len(values) >= 20 and kinds > 0.8 * len(values))


def is_gap(cell: Any) -> bool:
    """Return whether a cell holds nothing.

    >>> is_gap(" NA "), is_gap(float("nan")), is_gap(0)
    (True, True, False)
    """
    if isinstance(cell, str):
        return cell.strip().casefold() in GAPS
    if cell is None or type(cell).__name__ in _NOTHING_OF_PANDAS:
        return True
    return isinstance(cell, numbers.Real) and bool(cell != cell)  # NaN


def number_in(
    name: str,
    row: Mapping[str, Any],
    remark: str = ", no number as in other rows (a column of both is named in data.categories)",
) -> float | None:
    """Return the number in a column of a row; None for a gap.

    Args:
        remark: what is said behind a cell that is no number.
    Raises:
        BadRow: something else stands there, or the column is missing.
    """
    if name not in row:
        raise missing_column(name)
    number = parsed_cell(row[name])
    if isinstance(number, str):
        raise BadRow(
            "not a number",
            f"{name} is {shorten(number)!r}{remark}",
        )
    if number is not None and math.isinf(number):
        raise BadRow("infinite number", f"{name} is {number}")
    return number


def category_of(cell: Any) -> str:
    """Return a category's name: a whole number is one name however it is written; empty for a gap.

    >>> category_of(3.0), category_of("3"), category_of(" a "), category_of("?")
    ('3', '3', 'a', '')
    """
    if isinstance(cell, str):
        text = cell.strip()
        return "" if text.casefold() in GAPS else text
    if is_gap(cell):
        return ""
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell).strip()


def parsed_cell(cell: Any) -> float | str | None:
    """Return the number in a cell, None for a gap, or else its text."""
    if type(cell).__name__ in ("bool", "bool_"):  # NumPy's too
        return str(cell)
    try:
        number = float(cell)
    except (TypeError, ValueError, OverflowError):
        return None if is_gap(cell) else str(cell)
    return None if number != number else number


def missing_column(name: str) -> BadRow:
    """Return the fault of a row without that column."""
    return BadRow("missing column", f"the row has no '{name}'")
