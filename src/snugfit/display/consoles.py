"""The console of rich that everything is drawn on: plain text, as wide as the terminal says."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console

_UNKNOWN_WIDTH = 80
"""Columns of a terminal that does not know its own width, as those of containers and of scripts often say 0."""


def plain_console(stream: TextIO | None, *, stderr: bool = False) -> Console:
    """Return a console on a stream, stdout by default, or stderr."""
    from rich.console import Console

    console = Console(file=stream, stderr=stderr, highlight=False, markup=False, emoji=False)
    if console.width < 1:  # nothing at all would be shown
        console.width = _UNKNOWN_WIDTH
    return console
