"""A channel between a search and the process that waits for its answer: how far it is one way, an interrupt the other.

The search runs in a process of its own (`worker.py`), which connects the channel. Where nobody has, as in a test, nothing is told.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import Protocol

from snugfit.planner.answers.plan_figures import brief_bytes, brief_seconds

EARLY = "Stopped early: plans that were not looked at may be better."

UNCHECKED = (
    "There was no time to check it in full: what it needs is told by few blocks and micro-batches, and may be some percent more. "
    "Give it more --seconds, or --no-search with these techniques."
)


@dataclass(frozen=True)
class Progress:
    """The progress of a search.

    It has the plans looked at, of how many there are, and the time of an update and the bytes of the best
    that fits, None where none does yet; of the plans of one level of fidelity, where one after the other is searched.
    """

    looked: int
    of: int
    seconds: float | None = None
    bytes: int | None = None
    level: str | None = None

    def __str__(self) -> str:
        """Return the line that a terminal shows.

        >>> print(Progress(37, 4120, 12.1, 23_192_823_398))
        37 of 4,120 plans looked at, best 12.1 s in 21.6 GiB
        >>> print(Progress(1, 90))
        1 of 90 plans looked at, none fits yet
        >>> print(Progress(5, 90, level="compact"))
        compact: 5 of 90 plans looked at, none fits yet
        """
        best = "none fits yet"
        if self.seconds is not None and self.bytes is not None:
            best = f"best {brief_seconds(self.seconds)} in {brief_bytes(self.bytes)}"
        level = "" if self.level is None else f"{self.level}: "
        return f"{level}{self.looked:,} of {self.of:,} plans looked at, {best}"


class Search(Protocol):
    """A search that an interrupt ends: from its deadline on, a time of `time.monotonic`, it predicts no further plan."""

    deadline: float


@dataclass
class _Channel:
    """The process's own end of the channel."""

    send: Callable[[Progress], None] | None = None
    interrupted_at: float = math.inf
    searches: list[Search] = field(default_factory=list)


_here = _Channel()


def connect(send: Callable[[Progress], None]) -> None:
    """Send progress from now on, and take an interrupt (SIGINT) for the wish to have the best plan so far."""
    _here.send = send
    signal.signal(signal.SIGINT, _receive)


def tell(
    looked: int,
    of: int,
    seconds: float | None = None,
    bytes: int | None = None,
    level: str | None = None,
) -> None:
    """Tell the process that waits how far a search is, as `Progress` has it."""
    if _here.send is not None:
        _here.send(Progress(looked, of, seconds, bytes, level))


def heed(search: Search) -> None:
    """Let an interrupt end this search too, at once where it has come already."""
    if _here.send is not None:
        _here.searches.append(search)
    search.deadline = min(search.deadline, _here.interrupted_at)


def interrupted() -> bool:
    """Return whether an interrupt has come."""
    return _here.interrupted_at < math.inf


def _receive(_number: int, _frame: FrameType | None) -> None:
    _here.interrupted_at = min(_here.interrupted_at, time.monotonic())
    for search in _here.searches:
        search.deadline = min(search.deadline, _here.interrupted_at)
