"""The rows of a file one after the other, of which few are in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from snugfit.data.bad_rows import Fault
from snugfit.data.files.file_formats import (
    DELIMITERS,
    broken_list,
    counted_entries,
    delimited,
    delimiter_of,
    json_lines,
    parquet_rows,
)
from snugfit.data.files.file_lines import beginning_of, lines_of_file, open_text
from snugfit.data.files.json_lists import BrokenList, list_entries

NumberedRow = tuple[int, dict[str, Any] | Fault]
"""The line of a row, or its number, and the row, or what is wrong with it."""


def rows_in_order(path: Path, source: str, setting: str) -> tuple[tuple[str, ...], Iterator[NumberedRow]]:
    """Return the columns of a file of rows, none where each row has its own, and its rows as they are read.

    Args:
        path: of a table, of JSON or of Parquet, by its name.
    Raises:
        DataError: its beginning cannot be read; the rest raises it where it is read.
    """
    kind = path.suffix.lower()
    if kind == ".parquet":
        columns, rows = parquet_rows(path, source, setting)
        return columns, enumerate(rows, 1)
    if kind in DELIMITERS:
        with open_text(path) as file:
            delimiter = delimiter_of(file.readline(), DELIMITERS[kind])
        return delimited(lines_of_file(path), source, setting, delimiter)
    return (), _entries(path, source, setting) if is_json_list(path) else _objects(path, source)


def is_json_list(path: Path) -> bool:
    """Return whether a file is one JSON list, as files of JSON Lines are not."""
    return path.suffix.lower() == ".json" and beginning_of(path).startswith("[")


def _entries(path: Path, source: str, setting: str) -> Iterator[NumberedRow]:
    try:
        with open_text(path) as file:
            yield from counted_entries(list_entries(file), source)
    except BrokenList as error:
        raise broken_list(source, setting, error, error.line) from error


def _objects(path: Path, source: str) -> Iterator[NumberedRow]:
    with open_text(path) as file:
        yield from json_lines(file, source)
