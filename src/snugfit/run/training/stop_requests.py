"""Requests to stop at the next step boundary: signals, a time limit, and whoever watches the run."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from types import FrameType, TracebackType
from typing import Any

from snugfit.system.processes import follows, launched
from snugfit.units import format_seconds


def stop_signals() -> list[signal.Signals]:
    """Return the signals that ask for a stop; that of a closed terminal is not among them where it is ignored already, as by nohup."""
    signals = [signal.SIGTERM, signal.SIGINT]
    hangup = getattr(signal, "SIGHUP", None)  # Windows has none
    if hangup is not None and signal.getsignal(hangup) != signal.SIG_IGN:
        signals.append(hangup)
    return signals


def say_received(name: str) -> None:
    """Say that a signal has come and what follows, on whatever is left of the terminal."""
    with suppress(OSError, ValueError):
        start = "\r\x1b[K" if sys.stderr.isatty() else ""  # over the bar
        again = "Another Ctrl-C" if name == "SIGINT" else "Ctrl-C"
        print(
            f"{start}received {name}: stops after this update, and saves. {again} ends the run at once, without saving.",
            file=sys.stderr,
            flush=True,
        )


def _put_back(handlers: Mapping[int, Any]) -> None:
    for number, handler in handlers.items():
        # None: it was installed by something that is not Python
        signal.signal(number, signal.SIG_DFL if handler is None else handler)


@cache
def _leave_to_parent() -> None:
    """Have processes that are forked from now on, such as those that load data, write of their signals to no socket of this one."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))


class _Answer:
    """A listener that says at once that a signal has come.

    A handler in Python waits for the operator that the main thread computes, such as a whole backward; what
    the interpreter writes to a socket meanwhile is read by a thread.

    Args:
        numbers: of the signals that are answered, the first of which alone.
    """

    def __init__(self, numbers: list[signal.Signals]) -> None:
        _leave_to_parent()
        self._numbers = numbers
        self._read, self._write = socket.socketpair()
        self._write.setblocking(False)
        self._previous = signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._follow, name="signals", daemon=True)
        self._thread.start()

    def close(self) -> None:
        signal.set_wakeup_fd(self._previous)
        self._write.close()  # the thread reads nothing more then
        self._thread.join()
        self._read.close()

    def _follow(self) -> None:
        while received := self._read.recv(1):
            if received[0] in self._numbers:
                say_received(signal.Signals(received[0]).name)
                return


@contextmanager
def interrupts() -> Iterator[None]:
    """Temporarily have each signal to stop end what is done within, and no more than that: nothing is lost with it."""

    def receive(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    previous: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        previous = {number: signal.signal(number, receive) for number in stop_signals()}
    try:
        with suppress(KeyboardInterrupt):
            yield
    finally:
        _put_back(previous)


class StopRequest:
    """A context in which SIGTERM, SIGINT and SIGHUP ask for a stop instead of ending the process; a second SIGINT ends it.

    The first of them is answered at once, by the process that speaks for the run.

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
        self._answer: _Answer | None = None

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
        """Return whether the run should stop now."""
        return self.reason is not None

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            numbers = stop_signals()
            if not launched() and not follows():
                self._answer = _Answer(numbers)
            for number in numbers:
                self._previous[number] = signal.signal(number, self._receive)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _put_back(self._previous)
        if self._answer is not None:
            self._answer.close()

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        if self._signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        self._signal = signal.Signals(number).name
