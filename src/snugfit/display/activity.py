"""The line that names what a command does, as it begins and again while it lasts, so that no silence is longer than a few seconds."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import ClassVar, Self, TextIO

from snugfit.units import format_seconds

SILENCE_SECONDS = 4.0
"""After which what lasts is said again."""

_LOOK_SECONDS = 0.5


class Activity:
    """Says what is done: `activity(text)` as it begins, and how long it has lasted after each `SILENCE_SECONDS` without a line.

    A context. Inside of another one, that is silent meanwhile. Lines are plain, on terminals too: what draws over its line says all by
    itself, inside of a quiet one.

    Args:
        label: begins each line.
        text: what is done first; nothing is said of it before it has lasted.
        quiet: say nothing.
        stream: stderr by default.
        clock: in seconds.
    """

    _open: ClassVar[list[Activity]] = []

    def __init__(
        self,
        label: str = "",
        text: str = "",
        *,
        quiet: bool = False,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._label, self._text, self._quiet = label, text, quiet
        self._stream, self._clock = stream, clock
        self._began = self.last_line = clock()
        self._lock = threading.RLock()
        self._end = threading.Event()

    def __enter__(self) -> Self:
        Activity._open.append(self)
        if not self._quiet:
            if self._text:
                self(self._text)
            threading.Thread(target=self._watch, name="activity", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __call__(self, text: str) -> None:
        """Say what is done now."""
        self.during(text)
        self.write(text)

    def during(self, text: str) -> None:
        """Note what is done now, to be said if it lasts."""
        with self._lock:
            self._text, self._began = text, self._clock()

    def write(self, text: str) -> None:
        """Write a line."""
        with self._lock:
            self.last_line = self._clock()
            if not self._quiet:
                begin = f"{self._label:<9}" if self._label else ""
                print(f"{begin}{text}", file=self._stream or sys.stderr, flush=True)

    def look(self) -> None:
        """Say again what is done, where nothing has been said for `SILENCE_SECONDS`."""
        with self._lock:
            if self._end.is_set() or self._quiet or not self._text or Activity._open[-1:] != [self]:
                return  # or another one says what is done
            now = self._clock()
            if now - self.last_line >= SILENCE_SECONDS:
                self.write(f"{self._text.rstrip(' …')} … ({format_seconds(now - self._began)})")

    def close(self) -> None:
        """Say nothing more of it; a second call does nothing."""
        self._end.set()
        if self in Activity._open:
            Activity._open.remove(self)
            if Activity._open:
                outer = Activity._open[-1]
                # what is quiet stands for what has drawn over its line until now
                last_line = self._clock() if self._quiet else self.last_line
                outer.last_line = max(outer.last_line, last_line)

    def _watch(self) -> None:
        while not self._end.wait(_LOOK_SECONDS):
            with suppress(OSError, ValueError):  # the stream went away: whoever writes next says so
                self.look()
