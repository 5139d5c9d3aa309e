"""Rows, and what is made of them, that are read when they are asked for: of a file that is larger than one would like to hold."""

from __future__ import annotations

import hashlib
import itertools
import os
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, Generic, TypeVar, overload

from snugfit.data.bad_rows import Fault
from snugfit.data.files.file_formats import check_no_list, decode, json_lines
from snugfit.errors import DataError

A = TypeVar("A")
B = TypeVar("B")

LARGE_FILE = 64 << 20
"""Bytes of a file of JSON Lines from which on its rows stay in it."""

_HEAD = 8192


class _Lazy(Sequence[B]):
    """A sequence of which each value is made when it is asked for."""

    def value(self, place: int) -> B:
        """Return the value at a place that there is."""
        raise NotImplementedError

    @overload
    def __getitem__(self, place: int) -> B: ...
    @overload
    def __getitem__(self, place: slice) -> list[B]: ...
    def __getitem__(self, place: int | slice) -> B | list[B]:
        if isinstance(place, slice):
            return [self.value(each) for each in range(*place.indices(len(self)))]
        if not -len(self) <= place < len(self):
            raise IndexError(place)
        return self.value(place % len(self))

    def __iter__(self) -> Iterator[B]:
        return map(self.value, range(len(self)))


class LineRows(_Lazy[dict[str, Any]]):
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


class Made(_Lazy[B], Generic[A, B]):
    """Values that a function makes of the values of a sequence.

    >>> list(Made([3, 1], str)), Made([3, 1], str)[0:1]
    (['3', '1'], ['3'])
    """

    def __init__(self, values: Sequence[A], make: Callable[[A], B]) -> None:
        self._values, self._make = values, make

    def __len__(self) -> int:
        return len(self._values)

    def value(self, place: int) -> B:
        return self._make(self._values[place])


class Chained(_Lazy[B]):
    """Sequences one after the other.

    >>> list(Chained([[1, 2], [], [3]]))
    [1, 2, 3]
    """

    def __init__(self, parts: Sequence[Sequence[B]]) -> None:
        self._parts = list(parts)
        self._starts = list(itertools.accumulate(map(len, self._parts), initial=0))

    def __len__(self) -> int:
        return self._starts[-1]

    def value(self, place: int) -> B:
        part = bisect_right(self._starts, place) - 1
        return self._parts[part][place - self._starts[part]]
