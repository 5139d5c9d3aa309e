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

PATIENCE_SECONDS = 0.4
"""For which what is most often over at once may be silent."""

_LOOK_SECONDS, _DRAWN_SECONDS = 0.25, 1.0


class Activity:
    """Says what is done: `activity(text)` as it begins, and how long it has lasted after each `silence` without a line.

    `silence`, the seconds, may be set to more where what is done is known to last, and has said when it ends.

    A context. Inside of another one, that is silent meanwhile. Lines are plain, on terminals too, but where something draws over its
    line by itself, inside of a quiet one.

    Args:
        label: begins each line.
        text: what is done first; nothing is said of it before it has lasted.
        quiet: say nothing.
        redraw: of a quiet one: draws the line that says what is done, and is called about each second while that lasts.
        at_once: say first what is done; else only if it lasts for `PATIENCE_SECONDS`.
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
        redraw: Callable[[], None] | None = None,
        at_once: bool = True,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._label, self.text, self._quiet = label, text, quiet
        self._stream, self._clock = stream, clock
        self._began = self.last_line = clock()
        self._at_once, self._redraw = at_once, redraw
        self.silence = SILENCE_SECONDS
        self.draws = redraw is not None
        self._lock = threading.RLock()
        self._end = threading.Event()

    def __enter__(self) -> Self:
        new = self not in Activity._open
        if new:
            Activity._open.append(self)
            self._end, self.last_line = threading.Event(), self._clock()  # what was closed may begin again
        if not self._quiet and self.text and self._at_once:
            self(self.text)
        elif not self._at_once:
            self.last_line -= SILENCE_SECONDS - PATIENCE_SECONDS
        if new and (self._redraw is not None or not self._quiet):
            threading.Thread(target=self._watch, args=(self._end,), name="activity", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __call__(self, text: str) -> None:
        """Say what is done now."""
        self.during(text)
        self.write(text)

    def during(self, text: str, *, same: bool = False) -> None:
        """Note what is done now, to be said if it lasts.

        Args:
            same: it is what was done before, in other words, and has lasted as long.
        """
        with self._lock:
            self.text = text
            if not same:
                self._began = self._clock()

    def write(self, text: str) -> None:
        """Write a line."""
        with self._lock:
            self.last_line = self._clock()
            if not self._quiet:
                begin = f"{self._label:<9}" if self._label else ""
                print(f"{begin}{text}", file=self._stream or sys.stderr, flush=True)

    def look(self) -> None:
        """Say again what is done, where nothing has been said for `silence` seconds."""
        with self._lock:
            if self._end.is_set() or not self.text or Activity._open[-1:] != [self]:
                return  # or another one says what is done
            now = self._clock()
            if self._redraw is not None:
                if now - self.last_line >= _DRAWN_SECONDS:
                    self.last_line = now
                    self._redraw()
            elif not self._quiet and now - self.last_line >= self.silence:
                self.write(self.line())

    def line(self) -> str:
        """Return what is done, with the time that it has lasted where that is long; "" for nothing."""
        seconds = self._clock() - self._began
        lasted = f" ({format_seconds(seconds)})" if seconds >= _DRAWN_SECONDS else ""
        return f"{self.text.rstrip(' …')} …{lasted}" if self.text else ""

    @classmethod
    def drawn(cls) -> Activity | None:
        """Return the one that draws its line on the terminal now; None where none does."""
        newest = cls._open[-1] if cls._open else None
        return newest if newest is not None and newest.draws else None

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

    def _watch(self, end: threading.Event) -> None:
        while not end.wait(_LOOK_SECONDS):
            with suppress(OSError, ValueError):  # the stream went away: whoever writes next says so
                self.look()
