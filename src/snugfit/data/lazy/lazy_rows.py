"""Rows that are read when they are asked for: of a file that is larger than one would like to hold.

Lines that are rows stay where they are. Rows of files whose parts cannot be read by themselves are read once, and put into a file of the user's cache.
"""

from __future__ import annotations

import hashlib
import os
import zlib
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO

from snugfit.data.bad_rows import Fault
from snugfit.data.files.file_formats import (
    TEXT_COLUMN,
    check_no_list,
    decode,
    is_plain_text,
    json_lines,
    parquet_bytes,
    text_lines,
)
from snugfit.data.files.file_lines import beginning_of, text_of_line
from snugfit.data.files.rows_in_order import NumberedRow, RowsInOrder, is_json_list, rows_in_order
from snugfit.data.lazy.lazy_sequence import LazySequence
from snugfit.data.lazy.spooled_rows import SpooledRows
from snugfit.errors import DataError

LARGE_FILE = 64 << 20
"""Bytes of a file, or of rows as JSON, from which on its rows are not held."""

_PARQUET, _BY_LINES = ".parquet", (".jsonl", ".ndjson", ".txt")

_HEAD = 8192
_SPACE = " \t\n\r\x0b\x0c"

Read = Callable[[Iterable[str], str], Iterator[NumberedRow]]
"""Yields the number of each line that is a row, and the row or what is wrong with it, given the lines and their source."""

Large = tuple[tuple[str, ...], Sequence[dict[str, Any]], Sequence[int], list[Fault], str]
"""Columns, rows, the line on which each begins, the faults of rows that cannot be read, and the sha256 of the file."""


class LineRows(LazySequence[dict[str, Any]]):
    """Rows that are lines of a file that has been looked through, 20 bytes of memory for each.

    Args:
        read: makes the row of a line.
        starts, sizes, sums: the bytes of each row's line, and their check sum.
    """

    def __init__(
        self, path: Path, read: Read, starts: Sequence[int], sizes: Sequence[int], sums: Sequence[int]
    ) -> None:
        self._path, self._of_lines = path, read
        self._starts, self._sizes, self._sums = starts, sizes, sums
        self._lock = Lock()
        try:
            self._file = path.open("rb")  # the file is read on where another one takes its name
        except OSError as error:
            raise _changed(path) from error

    def __len__(self) -> int:
        return len(self._starts)

    def value(self, place: int) -> dict[str, Any]:
        start = self._starts[place]
        line = self._read(start, self._sizes[place])
        if zlib.crc32(line) != self._sums[place]:
            raise _changed(self._path)
        ((_, row),) = self._of_lines([text_of_line(line, start)], str(self._path))
        assert not isinstance(row, Fault)  # it was read before
        return row

    def _read(self, start: int, size: int) -> bytes:
        if hasattr(os, "pread"):  # not by a position that a copy of this process would share
            return os.pread(self._file.fileno(), size, start)
        with self._lock:
            self._file.seek(start)
            return self._file.read(size)

    def __reduce__(self) -> tuple[Any, ...]:
        return LineRows, (self._path, self._of_lines, self._starts, self._sizes, self._sums)


def _changed(path: Path) -> DataError:
    return DataError(
        path,
        "was changed while its rows were read",
        "Leave it as it is until the run has ended.",
    )


def is_larger(path: Path, kind: str, most: int) -> bool:
    """Return whether a file, before it is compressed, has so many bytes or more, and its rows can be read when they are asked for.

    Raises:
        OSError: it cannot be read.
    """
    size = path.stat().st_size
    if kind == _PARQUET:  # which is compressed
        size = max(size, parquet_bytes(path))
    return size >= most and hasattr(os, "pread")


def read_large(path: Path, kind: str, source: str, setting: str) -> Large:
    """Return what a reader of files of this kind returns, and the file's sha256, with rows that are read when they are asked for.

    Raises:
        DataError: as of a reader.
        OSError: the file cannot be read.
    """
    beginning = _beginning(path, source, setting) if kind != _PARQUET else kind
    if not beginning:
        return (), [], [], [], ""
    if kind in _BY_LINES or (kind == ".json" and not is_json_list(path)):
        read = _left_in_lines(path, source, text_lines if is_plain_text(path) else json_lines)
        if not is_plain_text(path):
            check_no_list(beginning, read[3], source, setting)
        return read
    return _put_aside(path, rows_in_order(path, source, setting))


def _beginning(path: Path, source: str, setting: str) -> str:
    """Return the first characters of a file behind white space; none where there are no others.

    Raises:
        DataError: it is no text.
    """
    with path.open("rb") as file:
        decode(file.read(_HEAD), source, setting)
    return beginning_of(path, _SPACE)


def _put_aside(path: Path, read: RowsInOrder) -> Large:
    """Return rows that are read from a file one after the other, and are kept in another one.

    Raises:
        DataError: the file is changed meanwhile.
    """
    state = _state(path)
    rows, numbers, faults = SpooledRows(), array("q"), list[Fault]()
    names = dict.fromkeys(read.columns)
    for number, row in read:
        if isinstance(row, Fault):
            faults.append(row)
            continue
        names.update(dict.fromkeys(row))
        rows.add(row)
        numbers.append(number)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if _state(path) != state:  # the digest would be that of other rows
        raise _changed(path)
    return tuple(names), rows, numbers, faults, digest


def _state(path: Path) -> tuple[int, ...]:
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def _left_in_lines(path: Path, source: str, read: Read) -> Large:
    """Return rows that are lines of a file, in which they stay."""
    columns = dict.fromkeys((TEXT_COLUMN,) if read is text_lines else ())
    starts, sizes, sums, numbers = array("q"), array("q"), array("I"), array("q")
    faults: list[Fault] = []
    digest, line_at, line_sum = hashlib.sha256(), (0, 0), 0

    def lines(file: BinaryIO) -> Iterator[str]:
        nonlocal line_at, line_sum
        for line in file:
            line_at, line_sum = (sum(line_at), len(line)), zlib.crc32(line)
            digest.update(line)
            yield text_of_line(line, line_at[0])

    with path.open("rb") as file:
        for number, row in read(lines(file), source):
            if isinstance(row, Fault):
                faults.append(row)
                continue
            columns.update(dict.fromkeys(row))
            numbers.append(number)
            starts.append(line_at[0])
            sizes.append(line_at[1])
            sums.append(line_sum)
    return tuple(columns), LineRows(path, read, starts, sizes, sums), numbers, faults, digest.hexdigest()
