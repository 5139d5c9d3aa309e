"""Requests to stop at the next step boundary: signals, a time limit, and whoever watches the run."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

from snugfit.units import format_seconds


class StopRequest:
    """Within, SIGTERM and SIGINT ask for a stop instead of ending the process; a second SIGINT ends it.

    Args:
        after_seconds: ask for a stop once this much time has passed since `started`.
        started: a `time.monotonic()`; now, if not given.
        asked_for: the reason of another to stop, or None; asked after every window.
    """

    def __init__(
        self,
        after_seconds: float | None = None,
        started: float | None = None,
        asked_for: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._asked_for = asked_for
        self._after = after_seconds
        self._started = time.monotonic() if started is None else started
        self._signal: str | None = None
        self._previous: dict[int, Any] = {}

    @property
    def reason(self) -> str | None:
        """Why the run should stop now, or None."""
        if self._signal is not None:
            return f"received {self._signal}"
        if self._after is not None and time.monotonic() - self._started >= self._after:
            return f"stopped after {format_seconds(self._after)} as asked"
        return self._asked_for()

    @property
    def asked(self) -> bool:
        """Whether the run should stop now."""
        return self.reason is not None

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                self._previous[number] = signal.signal(number, self._receive)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            # None: it was installed by something that is not Python
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._signal = signal.Signals(number).name
