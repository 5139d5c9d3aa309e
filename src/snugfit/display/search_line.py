"""A line on the terminal that shows how far the search for a plan is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from snugfit.display.activity import Activity
from snugfit.planner.choice.channel import Progress

_CLEAR = "\r\x1b[2K"


@contextmanager
def search_line(quiet: bool = False) -> Iterator[Callable[[Progress], None]]:
    """Temporarily show progress in one line of stderr that is written anew each time; elsewhere as a line every few seconds.

    Where a run has its line on the terminal, it is shown there.
    """
    stream = sys.stderr
    if quiet:
        yield lambda _: None
        return
    if (drawn := Activity.drawn()) is not None:
        before = drawn.text
        drawn.during("planning")
        try:
            yield lambda progress: drawn.during(str(progress), same=True)
        finally:
            drawn.during(before)
        return
    if not stream.isatty():
        with Activity("plan", "planning …") as activity:
            yield lambda progress: activity.during(str(progress), same=True)
        return

    def draw() -> None:
        stream.write(f"{_CLEAR}{activity.line()}")
        stream.flush()

    def show(progress: Progress) -> None:
        activity.during(str(progress), same=True)
        draw()

    with Activity(text="planning …", quiet=True, redraw=draw) as activity:  # others are silent meanwhile
        draw()
        try:
            yield show
        finally:
            activity.close()
            stream.write(_CLEAR)
            stream.flush()
