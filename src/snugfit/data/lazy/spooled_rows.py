"""Rows that lie in a file of the user's cache once they are many, so that few of them are in memory."""

from __future__ import annotations

import pickle
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

from snugfit.data.lazy.lazy_sequence import LazySequence
from snugfit.data.lazy.unnamed_file import UnnamedFile

IN_MEMORY = 4 << 20
"""Bytes of rows that wait to be put aside together."""


class SpooledRows(LazySequence[dict[str, Any]]):
    """Rows that are added one after the other; where no file can be written they stay in memory, and so does a row that cannot be pickled.

    >>> rows = SpooledRows()
    >>> rows.add({"text": "a good film"})
    >>> rows[-1], len(rows)
    ({'text': 'a good film'}, 1)
    """

    def __init__(self) -> None:
        self._file = UnnamedFile()
        self._ends = array("q", [0])  # of the rows in the file
        self._waiting: list[bytes] = []
        self._bytes = 0
        self._held: dict[int, dict[str, Any]] = {}  # rows that cannot be pickled, by their places

    def add(self, row: Mapping[str, Any]) -> None:
        """Take one more row."""
        try:
            content = pickle.dumps(dict(row), pickle.HIGHEST_PROTOCOL)
        except Exception:  # noqa: BLE001 - what is in it may say in any way that it cannot be pickled
            content, self._held[len(self)] = b"", dict(row)
        self._waiting.append(content)
        self._bytes += len(content)
        if self._bytes >= IN_MEMORY:
            self._put_aside()

    def __len__(self) -> int:
        return len(self._ends) - 1 + len(self._waiting)

    def value(self, place: int) -> dict[str, Any]:
        if place in self._held:
            return self._held[place]
        written = len(self._ends) - 1
        if place >= written:
            content = self._waiting[place - written]
        else:
            start, end = self._ends[place : place + 2]
            content = self._file.read(start, end - start)
        row: dict[str, Any] = pickle.loads(content)  # of this process, in a file that no other can open
        return row

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (list(self),)  # a process that is no copy of this one cannot read the file

    def _put_aside(self) -> None:
        """Write the rows that wait into the file."""
        self._bytes = 0
        if self._file.add(self._waiting):
            for each in self._waiting:
                self._ends.append(self._ends[-1] + len(each))
            self._waiting.clear()


class GatheredRows:
    """Rows that are added one after the other, and are put aside once they come to so many bytes.

    Args:
        most: bytes of rows that are held.

    >>> gathered = GatheredRows(most=100)
    >>> gathered.add({"text": "a good film"}, size=60)
    >>> isinstance(gathered.rows, list)
    True
    >>> gathered.add({"text": "a bad book"}, size=60)
    >>> isinstance(gathered.rows, SpooledRows), len(gathered.rows)
    (True, 2)
    """

    def __init__(self, most: int) -> None:
        self.rows: list[dict[str, Any]] | SpooledRows = []
        self._most, self._bytes = most, 0

    def add(self, row: Mapping[str, Any], size: int) -> None:
        """Take one more row, of so many bytes."""
        if isinstance(self.rows, SpooledRows):
            self.rows.add(row)
            return
        self.rows.append(dict(row))
        self._bytes += size
        if self._bytes >= self._most:
            aside = SpooledRows()
            for each in self.rows:
                aside.add(each)
            self.rows = aside

    @property
    def numbers(self) -> Sequence[int]:
        """The number of each row, from 1."""
        numbers = range(1, len(self.rows) + 1)
        return list(numbers) if isinstance(self.rows, list) else numbers
