"""A JSON list that is read entry by entry, so that little of it is in memory at a time."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, TextIO

from snugfit.system.json_text import value_at

_BLOCK = 1 << 16
"""Characters that are read at once, and at least as many as are held."""

_LONGEST = 1 << 26
"""Characters of an entry: what is no JSON in so many is none."""

_CUT = len("e-")
"""Characters behind a number that belong to it where a digit follows."""

_SPACE = re.compile(r"[ \t\n\r]*")


class BrokenList(ValueError):
    """An error in a list, and its line."""

    def __init__(self, problem: str, line: int) -> None:
        super().__init__(problem)
        self.line = line


class _Text:
    """The characters of a file from a place on, of which some are held.

    Args:
        line, byte: that the file is at.
    """

    def __init__(self, file: TextIO, line: int = 1, byte: int = 0) -> None:
        self._file, self._held, self._at, self._line, self._byte = file, "", 0, line, byte

    def place(self) -> tuple[int, int]:
        """Return the line and the byte of the next character."""
        passed = self._held[: self._at]
        return self._line + passed.count("\n"), self._byte + len(passed.encode("utf-8", "surrogateescape"))

    def more(self) -> bool:
        """Hold as many characters again; False at the end of the file."""
        self._line, self._byte = self.place()
        self._held, self._at = self._held[self._at :], 0
        block = self._file.read(max(_BLOCK, len(self._held)))
        self._held += block
        return bool(block)

    def next(self) -> str:
        """Pass by white space, and return the character behind it; nothing at the end."""
        while True:
            match = _SPACE.match(self._held, self._at)
            assert match is not None  # it takes no space too
            self._at = match.end()
            if self._at < len(self._held) or not self.more():
                return self._held[self._at : self._at + 1]

    def skip(self) -> None:
        """Pass by one character."""
        self._at += 1

    def value(self) -> Any:
        """Pass by a value, and return it.

        Raises:
            BrokenList: there is none.
        """
        while True:
            at = self._at  # to be 0 where more is held
            try:
                value, end = value_at(self._held, at)
            except ValueError as error:  # it may go on
                if len(self._held) - at < _LONGEST and self.more():
                    continue
                if isinstance(error, json.JSONDecodeError):
                    raise self.broken(error.msg, self._at + error.pos - at) from error
                raise self.broken(str(error), self._at) from error
            if end + _CUT < len(self._held) or not self.more():
                self._at += end - at
                return value

    def broken(self, problem: str, at: int | None = None) -> BrokenList:
        return BrokenList(problem, self._line + self._held.count("\n", 0, self._at if at is None else at))


class ListEntries:
    """The entries of a file that is one JSON list, or those behind an entry; each is read when it is asked for.

    Args:
        file: at its beginning, or where an entry has ended, if it has `begun`.
        line, byte: that it is at.
    Raises:
        BrokenList: it is none.

    >>> import io
    >>> list(ListEntries(io.StringIO('[{"a": 1}, 2]')))
    [{'a': 1}, 2]
    >>> list(ListEntries(io.StringIO(', 2]'), begun=True))
    [2]
    """

    def __init__(self, file: TextIO, line: int = 1, byte: int = 0, *, begun: bool = False) -> None:
        self._text, self._begun = _Text(file, line, byte), begun

    def place(self) -> tuple[int, int]:
        """Return the line and the byte behind the last entry that was read."""
        return self._text.place()

    def __iter__(self) -> Iterator[Any]:
        text = self._text
        if not self._begun:
            if text.next() != "[":
                raise text.broken("it is no list")
            text.skip()
        if not self._begun and text.next() == "]":
            text.skip()
        else:
            while True:
                if self._begun:
                    follows = text.next()
                    if follows not in (",", "]"):
                        raise text.broken("',' or ']' is missing behind an entry")
                    text.skip()
                    if follows == "]":
                        break
                    text.next()
                self._begun = True
                yield text.value()
        if text.next():
            raise text.broken("something stands behind the list")
