"""Garbage of a process that loads its libraries: looked for among what is new alone.

To look through all that was loaded, again and again while more is loaded, takes a good part of the time; not to look at all leaves the
process larger.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_ONLY_NEW = (20_000, 1_000, 1_000)
"""After how many objects garbage is looked for among the new ones, and after how many such times among older ones: never."""

_usual: tuple[int, int, int] | None = None
"""The same as it was, while a process loads."""


@contextmanager
def loading() -> Iterator[None]:
    """Temporarily, until `done_loading` is called, look for garbage among new objects alone; in a process that is a command's own."""
    global _usual
    _usual = gc.get_threshold()
    gc.set_threshold(*_ONLY_NEW)
    try:
        yield
    finally:
        done_loading()


def done_loading() -> None:
    """Look for garbage as before again, but no more among what was loaded; does nothing where `loading` was not begun."""
    global _usual
    if _usual is not None:
        gc.freeze()
        gc.set_threshold(*_usual)
        _usual = None
