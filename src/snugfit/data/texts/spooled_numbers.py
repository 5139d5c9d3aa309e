"""Whole numbers that lie in a file of the user's cache once they are many, so that little of them is in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from snugfit.data.lazy.unnamed_file import UnnamedFile

Numbers: TypeAlias = NDArray[Any]

IN_MEMORY = 16 << 20
"""Bytes of an array's numbers that stay in memory."""

_COPIED = 1 << 22
"""Numbers that are copied at a time."""


class SpooledNumbers:
    """An array that is made of parts one after the other; where no file can be written all of it stays in memory.

    >>> numbers = SpooledNumbers()
    >>> numbers.add(np.array([1, 300]))
    >>> numbers.add(np.array([-1]))
    >>> numbers.whole()
    array([  1, 300,  -1], dtype=int16)
    """

    def __init__(self) -> None:
        self._file = UnnamedFile()
        self._written: list[tuple[np.dtype[Any], int]] = []  # types and counts of the parts in the file
        self._parts: list[Numbers] = []
        self._bytes = 0
        self._range: tuple[int, int] | None = None

    def add(self, numbers: Numbers) -> None:
        """Take more of the numbers."""
        own = small(numbers)
        self._parts.append(own)
        if own.dtype.kind in "iu" and own.size:
            least, most = self._range or (int(numbers[0]), int(numbers[0]))
            self._range = min(least, int(numbers.min())), max(most, int(numbers.max()))
            self._bytes += own.size * own.itemsize
            if self._bytes > IN_MEMORY:
                self._put_aside()

    def whole(self) -> Numbers:
        """Return all numbers in as few bytes as they need; many of them are mapped, from a file that goes with them."""
        if not self._written:
            return small(np.concatenate(self._parts))
        assert self._range is not None  # else nothing would have been put aside
        least, most = self._range
        count = sum(count for _, count in self._written) + sum(part.size for part in self._parts)
        kind = kind_of(least, most)
        if least == most:
            return np.broadcast_to(np.array(least, kind), (count,))
        whole = UnnamedFile()
        if all(whole.add([_bytes_of(numbers.astype(kind))]) for numbers in self._read()):
            return np.frombuffer(whole.mapped(), kind)
        return np.concatenate([numbers.astype(kind) for numbers in self._read()])

    def _read(self) -> Iterator[Numbers]:
        at = 0
        for kind, count in self._written:
            for start in range(0, count, _COPIED):
                size = min(_COPIED, count - start) * kind.itemsize
                yield np.frombuffer(self._file.read(at, size), kind)
                at += size
        yield from self._parts

    def _put_aside(self) -> None:
        """Write the parts that are in memory into the file."""
        self._bytes = 0
        if self._file.add([_bytes_of(part) for part in self._parts]):
            self._written += [(part.dtype, part.size) for part in self._parts]
            self._parts.clear()


def _bytes_of(numbers: Numbers) -> memoryview:
    return np.ascontiguousarray(numbers).view(np.uint8).data


def kind_of(least: int, most: int) -> np.dtype[Any]:
    """Return the smallest type of numbers in this range.

    >>> str(kind_of(0, 300)), str(kind_of(-100, 7))
    ('uint16', 'int16')
    """
    kinds = (np.uint8, np.uint16, np.int32) if least >= 0 else (np.int16, np.int32)
    fitting = (kind for kind in kinds if np.iinfo(kind).min <= least and most <= np.iinfo(kind).max)
    return np.dtype(next(fitting, np.int64))


def small(array: Numbers) -> Numbers:
    """Return whole numbers in as few bytes as they need: none where all are the same, as those of a mask are.

    >>> small(np.array([1, 300])).dtype, small(np.array([-100, 7])).dtype, small(np.ones(9, int)).strides
    (dtype('uint16'), dtype('int16'), (0,))
    """
    if array.dtype.kind not in "iu" or not array.size:
        return array
    least, most = int(array.min()), int(array.max())
    if least == most:
        return np.broadcast_to(np.array(least, kind_of(least, most)), array.shape)
    return array.astype(kind_of(least, most))
