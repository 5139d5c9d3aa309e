"""A line on the terminal that shows how far the search for a plan is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from snugfit.planner.choice.channel import Progress

_CLEAR = "\r\x1b[2K"


@contextmanager
def search_line(quiet: bool = False) -> Iterator[Callable[[Progress], None]]:
    """Temporarily show progress in one line of stderr that is written anew each time; nothing where stderr is no terminal."""
    stream = sys.stderr
    if quiet or not stream.isatty():
        yield lambda _: None
        return

    def show(progress: Progress) -> None:
        stream.write(f"{_CLEAR}{progress}")
        stream.flush()

    try:
        yield show
    finally:
        stream.write(_CLEAR)
        stream.flush()
