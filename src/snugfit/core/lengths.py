"""Lengths of parts of a run: a number of updates, or a fraction of the run."""

from __future__ import annotations

LENGTH = "a whole number of updates, or a fraction of the run below 1"


def is_length(part: float) -> bool:
    """Return whether `part` is `LENGTH`.

    >>> is_length(0.1), is_length(500), is_length(1.5)
    (True, True, False)
    """
    return 0 <= part < 1 or (part >= 1 and part % 1 == 0)


def number_of_updates(part: float, total_updates: int) -> int:
    """`part` itself from 1 on, a fraction of the run below.

    >>> number_of_updates(0.1, total_updates=200), number_of_updates(50, total_updates=200)
    (20, 50)
    """
    return round(part * total_updates) if part < 1 else int(part)
