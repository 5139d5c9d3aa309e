"""Lines of a text that can be read again from any of them on: of one in memory, or of a file."""

from __future__ import annotations

import codecs
import io
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TextIO

Lines = Callable[[int], Iterator[str]]
"""Yields lines with their ends, in any of the ways of ending them, from one on, counted from 0, of those that were read and the next one."""

_ERRORS = "surrogateescape"
"""Bytes that are no UTF-8 become lone surrogates, so that only their rows are lost."""


_BLOCK = 8192
"""Characters that are read at once."""


def open_text(path: Path) -> TextIO:
    """Open a text whose lines end with a line feed; nothing in it is converted."""
    return path.open(encoding="utf-8-sig", errors=_ERRORS, newline="\n")


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


def lines_of_file(path: Path) -> Lines:
    """Return the lines of a file, which are not kept: 8 bytes of memory for each that was read."""
    with path.open("rb") as file:
        mark = file.read(len(codecs.BOM_UTF8))
    starts = array("q", [len(mark) if mark == codecs.BOM_UTF8 else 0])

    def onwards(number: int) -> Iterator[str]:
        with path.open("rb") as file:
            file.seek(starts[number])
            for line in io.TextIOWrapper(file, "utf-8", _ERRORS, newline=""):
                number += 1
                if number == len(starts):
                    starts.append(starts[-1] + len(line.encode("utf-8", _ERRORS)))
                yield line

    return onwards
