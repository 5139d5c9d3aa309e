"""Rows of a table as a graph takes them, by `table.json` beside this file.

An export of a network for tables has a copy of this file, which imports nothing else of ours: it needs numpy alone.
"""

from __future__ import annotations

import json
import math
import numbers
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

GAPS = {"", "na", "n/a", "nan", "null", "none", "?"}
"""Texts of a cell that holds nothing, in small letters."""

Row = Mapping[str, Any]


def encode(rows: Sequence[Row], table: Mapping[str, Any] | None = None) -> dict[str, NDArray[Any]]:
    """Return the graph's inputs, of shape (rows, columns): `numbers` in float32, and `categories` in int64.

    Numbers are in units of their spread from their median, which stands for a gap; large ones are drawn in. Behind them stands a mark for each
    gap of a column that had some in training. A category is its place among those of training, from 1, and 0 any other one and a gap.

    Args:
        rows: values by the names of columns, as numbers or as a file of texts has them.
        table: what `table.json` holds.
    Raises:
        ValueError: a row has no such column, or no number where one is read.
    """
    if table is None:
        table = json.loads(Path(__file__).with_name("table.json").read_text(encoding="utf-8"))
    columns: list[NDArray[np.float64]] = []
    marks: list[NDArray[np.float64]] = []
    for column in table["numbers"]:
        cells = [_number(place, row, column["name"]) for place, row in enumerate(rows, 1)]
        values = np.array([column["middle"] if cell is None else cell for cell in cells], np.float64)
        values = (values - column["middle"]) / column["spread"]
        columns.append(values / np.sqrt(1 + (values / 3) ** 2))
        if column["gaps"]:
            marks.append(np.array([cell is None for cell in cells], np.float64))
    codes = [_codes(rows, column) for column in table["categories"]]
    return {
        name: np.array(made, kind).reshape(len(made), len(rows)).T.copy()
        for name, made, kind in (("numbers", [*columns, *marks], np.float32), ("categories", codes, np.int64))
    }


def _codes(rows: Sequence[Row], column: Mapping[str, Any]) -> list[int]:
    known = {value: code for code, value in enumerate(column["values"], 1)}
    return [known.get(_category(_cell(place, row, column["name"])), 0) for place, row in enumerate(rows, 1)]


def _number(place: int, row: Row, name: str) -> float | None:
    """Return the number in a column; None for a gap."""
    cell = _cell(place, row, name)
    if _is_gap(cell):
        return None
    try:
        number = math.inf if type(cell).__name__ in ("bool", "bool_") else float(cell)
    except (TypeError, ValueError, OverflowError):
        number = math.inf
    if math.isinf(number):
        raise ValueError(f"row {place}: {name} is {cell!r}, no number")
    return number


def _category(cell: Any) -> str:
    """Return a category's name: a whole number is one name however it is written; empty for a gap."""
    if _is_gap(cell):
        return ""
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell).strip()


def _is_gap(cell: Any) -> bool:
    if isinstance(cell, str):
        return cell.strip().casefold() in GAPS
    if cell is None or type(cell).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(cell, numbers.Real) and bool(cell != cell)


def _cell(place: int, row: Row, name: str) -> Any:
    if name not in row:
        raise ValueError(f"row {place}: no column {name!r}")
    return row[name]
