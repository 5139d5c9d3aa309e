"""Lines of a text that can be read again from any of them on: of one in memory, or of a file."""

from __future__ import annotations

import codecs
import io
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, TextIO

Lines = Callable[[int], Iterator[str]]
"""Yields lines with their ends, in any of the ways of ending them, from one on, counted from 0, of those that were read and the next one."""

_ERRORS = "surrogateescape"
"""Bytes that are no UTF-8 become lone surrogates, so that only their rows are lost."""


_BLOCK = 8192
"""Characters that are read at once."""


def text_of_line(line: bytes, start: int) -> str:
    """Return the text of a line of a file, which begins at byte `start`; bytes that are no UTF-8 become lone surrogates."""
    return line.decode("utf-8" if start else "utf-8-sig", _ERRORS)


class LinesInPlace:
    """The lines of a file from a place on, each up to its line feed.

    Args:
        line, byte: how many lines and bytes are before the next one; they grow as lines are read.
        begin: the byte where the last one that was read begins.
    """

    def __init__(self, path: Path, line: int = 0, byte: int = 0) -> None:
        self._path, self.line, self.byte, self.begin = path, line, byte, byte

    def __iter__(self) -> Iterator[str]:
        with self._path.open("rb") as file:
            file.seek(self.byte)
            for line in file:
                self.begin = self.byte
                self.byte += len(line)
                self.line += 1
                yield text_of_line(line, self.begin)


def open_text(path: Path) -> TextIO:
    """Open a text whose lines end with a line feed; nothing in it is converted."""
    file = path.open("rb")
    file.seek(_bytes_of_mark(file))  # utf-8-sig loses what a file of one or two bytes has of a mark
    return io.TextIOWrapper(file, "utf-8", _ERRORS, newline="\n")


def _bytes_of_mark(file: BinaryIO) -> int:
    """Return how many bytes the mark of UTF-8 takes at the beginning of a file, which is read up to there."""
    mark = file.read(len(codecs.BOM_UTF8))
    return len(mark) if mark == codecs.BOM_UTF8 else 0


def beginning_of(path: Path, space: str | None = None) -> str:
    """Return the first characters of a text behind white space, whatever is on its first line; none where there are no others.

    Args:
        space: the characters that are white space.
    """
    with open_text(path) as text:
        while block := text.read(_BLOCK):
            if beginning := block.lstrip(space):
                return beginning
    return ""


def lines_in_memory(text: str) -> Lines:
    r"""Return the lines of a text.

    >>> list(lines_in_memory("a\r\nb\rc\n")(1))
    ['b\r', 'c\n']
    """
    lines = list(io.StringIO(text, newline=""))
    return lambda number: map(lines.__getitem__, range(number, len(lines)))


class FileLines:
    """The lines of a file from one on, which are not kept: 8 bytes of memory for each that was read.

    Args:
        line, byte: the number of the first one, counted from 0, and where it begins.
    """

    def __init__(self, path: Path, line: int = 0, byte: int = 0) -> None:
        if not line:
            with path.open("rb") as file:
                byte = _bytes_of_mark(file)
        self._path, self._first = path, line
        self._starts = array("q", [byte])

    def __call__(self, number: int) -> Iterator[str]:
        place = number - self._first
        with self._path.open("rb") as file:
            file.seek(self._starts[place])
            for line in io.TextIOWrapper(file, "utf-8", _ERRORS, newline=""):
                place += 1
                if place == len(self._starts):
                    self._starts.append(self._starts[-1] + len(line.encode("utf-8", _ERRORS)))
                yield line

    def byte(self, number: int) -> int:
        """Return where a line begins that was read, or is the next one."""
        return self._starts[number - self._first]
