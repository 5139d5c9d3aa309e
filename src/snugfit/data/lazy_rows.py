"""Rows that are read when they are asked for: of a file that is larger than one would like to hold."""

from __future__ import annotations

import hashlib
import os
import zlib
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO

from snugfit.data.bad_rows import Fault
from snugfit.data.files.file_formats import check_no_list, decode, json_lines
from snugfit.data.lazy_sequence import LazySequence
from snugfit.errors import DataError

LARGE_FILE = 64 << 20
"""Bytes of a file of JSON Lines from which on its rows stay in it."""

_HEAD = 8192


class LineRows(LazySequence[dict[str, Any]]):
    """Rows of a file of JSON Lines that has been looked through, 20 bytes of memory for each.

    Args:
        starts, sizes, sums: the bytes of each row's line, and their check sum.
    """

    def __init__(self, path: Path, starts: Sequence[int], sizes: Sequence[int], sums: Sequence[int]) -> None:
        self._path, self._starts, self._sizes, self._sums = path, starts, sizes, sums
        self._lock = Lock()
        try:
            self._file = path.open("rb")  # the file is read on where another one takes its name
        except OSError as error:
            raise self._changed() from error

    def __len__(self) -> int:
        return len(self._starts)

    def value(self, place: int) -> dict[str, Any]:
        line = self._read(self._starts[place], self._sizes[place])
        if zlib.crc32(line) != self._sums[place]:
            raise self._changed()
        ((_, row),) = json_lines([line.decode("utf-8-sig")], str(self._path))
        assert not isinstance(row, Fault)  # it was read before
        return row

    def _read(self, start: int, size: int) -> bytes:
        if hasattr(os, "pread"):  # not by a position that a copy of this process would share
            return os.pread(self._file.fileno(), size, start)
        with self._lock:
            self._file.seek(start)
            return self._file.read(size)

    def __reduce__(self) -> tuple[Any, ...]:
        return LineRows, (self._path, self._starts, self._sizes, self._sums)

    def _changed(self) -> DataError:
        return DataError(
            self._path,
            "was changed while its rows were read",
            "Leave it as it is until the run has ended.",
        )


def read_large(
    path: Path, source: str, setting: str
) -> tuple[tuple[str, ...], LineRows, Sequence[int], list[Fault], str]:
    """Return what a reader of JSON Lines returns, and the file's sha256, with the rows in the file.

    Raises:
        DataError: as of a reader.
    """
    columns: dict[str, None] = {}
    starts, sizes, sums, numbers = array("q"), array("q"), array("I"), array("q")
    faults: list[Fault] = []
    digest, line_at, line_sum = hashlib.sha256(), (0, 0), 0

    def lines(file: BinaryIO) -> Iterator[str]:
        nonlocal line_at, line_sum
        for line in file:
            line_at, line_sum = (sum(line_at), len(line)), zlib.crc32(line)
            digest.update(line)
            yield line.decode("utf-8" if line_at[0] else "utf-8-sig", "surrogateescape")

    with path.open("rb") as file:
        head = decode(file.read(_HEAD), source, setting)
        file.seek(0)
        for number, row in json_lines(lines(file), source):
            if isinstance(row, Fault):
                faults.append(row)
                continue
            columns.update(dict.fromkeys(row))
            numbers.append(number)
            starts.append(line_at[0])
            sizes.append(line_at[1])
            sums.append(line_sum)
    check_no_list(head, faults, source, setting)
    return tuple(columns), LineRows(path, starts, sizes, sums), numbers, faults, digest.hexdigest()
