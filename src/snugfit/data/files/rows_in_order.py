"""The rows of a file one after the other, of which few are in memory at a time, from the first or from where one has stopped."""

from __future__ import annotations

import codecs
import io
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from snugfit.data.bad_rows import Fault
from snugfit.data.files.file_formats import (
    DELIMITERS,
    below_header,
    broken_list,
    counted_entries,
    delimiter_of,
    header,
    json_lines,
    parquet_rows,
)
from snugfit.data.files.file_lines import FileLines, LinesInPlace, beginning_of, open_text
from snugfit.data.files.json_lists import BrokenList, ListEntries

NumberedRow = tuple[int, dict[str, Any] | Fault]
"""The line of a row, or its number, and the row, or what is wrong with it."""

Place = Sequence[int]
"""A place behind a row, in whole numbers: in which, each kind of file has its own way."""


class RowsInOrder(ABC):
    """The rows of a file, each read when it is asked for.

    Args:
        columns: of all of them; none where each has its own.
    """

    columns: tuple[str, ...] = ()

    @abstractmethod
    def __iter__(self) -> Iterator[NumberedRow]: ...

    @abstractmethod
    def place(self) -> Place:
        """Return the place behind the last row that was read."""


def rows_in_order(path: Path, source: str, setting: str, begin: Place | None = None) -> RowsInOrder:
    """Return the rows of a file as they are read.

    Args:
        path: of a table, of JSON or of Parquet, by its name.
        begin: the place of that file that they begin at; None: its beginning.
    Raises:
        DataError: its beginning cannot be read; the rest raises it where it is read.
    """
    kind = path.suffix.lower()
    if kind == ".parquet":
        return _ParquetRows(path, source, setting, *(begin or ()))
    if kind in DELIMITERS:
        return _TableRows(path, source, setting, begin)
    if is_json_list(path):
        return _ListRows(path, source, setting, *(begin or ()))
    return _ObjectRows(path, source, *(begin or ()))


def is_json_list(path: Path) -> bool:
    """Return whether a file is one JSON list, as files of JSON Lines are not."""
    return path.suffix.lower() == ".json" and beginning_of(path).startswith("[")


class _ObjectRows(RowsInOrder):
    """Rows of a file of JSON Lines; a place is the lines and bytes before it."""

    def __init__(self, path: Path, source: str, line: int = 0, byte: int = 0) -> None:
        self._source, self._lines = source, LinesInPlace(path, line, byte)

    def __iter__(self) -> Iterator[NumberedRow]:
        yield from json_lines(self._lines, self._source, self._lines.line)

    def place(self) -> Place:
        return self._lines.line, self._lines.byte


class _TableRows(RowsInOrder):
    """Rows of a table; a place is the lines and bytes before it."""

    def __init__(self, path: Path, source: str, setting: str, begin: Place | None) -> None:
        with open_text(path) as file:
            self._delimiter = delimiter_of(file.readline(), DELIMITERS[path.suffix.lower()])
        self._source, self._lines = source, FileLines(path)
        self.columns, self._line = header(self._lines, source, setting, self._delimiter)
        if begin is not None:
            self._line, byte = begin
            self._lines = FileLines(path, self._line, byte)

    def __iter__(self) -> Iterator[NumberedRow]:
        if self.columns:
            yield from below_header(
                self.columns, self._lines, self._source, self._delimiter, self._line, self._pass
            )

    def _pass(self, line: int) -> None:
        self._line = line

    def place(self) -> Place:
        return self._line, self._lines.byte(self._line)


class _ListRows(RowsInOrder):
    """Rows of a file that is one JSON list; a place is the entries before it, its line and its byte."""

    def __init__(
        self, path: Path, source: str, setting: str, count: int = 0, line: int = 1, byte: int = 0
    ) -> None:
        self._path, self._source, self._setting = path, source, setting
        self._count, self._line, self._byte = count, line, byte
        self._entries: ListEntries | None = None

    def __iter__(self) -> Iterator[NumberedRow]:
        try:
            with self._path.open("rb") as file:
                if not self._byte and file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8:
                    self._byte = len(codecs.BOM_UTF8)
                file.seek(self._byte)
                text = io.TextIOWrapper(file, "utf-8", "surrogateescape", newline="\n")
                self._entries = ListEntries(text, self._line, self._byte, begun=self._count > 0)
                for number, row in counted_entries(self._entries, self._source, self._count):
                    self._count = number
                    yield number, row
        except BrokenList as error:
            raise broken_list(self._source, self._setting, error, error.line) from error

    def place(self) -> Place:
        if self._entries is not None:
            self._line, self._byte = self._entries.place()
        return self._count, self._line, self._byte


class _ParquetRows(RowsInOrder):
    """Rows of a Parquet file; a place is the rows before it."""

    def __init__(self, path: Path, source: str, setting: str, count: int = 0) -> None:
        self._count = count
        self.columns, self._rows = parquet_rows(path, source, setting, count)

    def __iter__(self) -> Iterator[NumberedRow]:
        for row in self._rows:
            self._count += 1
            yield self._count, row

    def place(self) -> Place:
        return (self._count,)
