"""A fork of a process that computes beside it, some calls at a time: about half of the dry runs that a prediction needs.

A dry run follows from its plan, techniques and depth alone, so it is the same whichever process makes it, and so is all that is chosen.
A call that fails in the fork has no answer: who asked computes it, and sees why.

Torch refuses a backward in a fork of a process that has made one. So the fork is made before the first one, and only where `allow` was
called: in the planner's own process, which has done nothing else.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from snugfit.system.pickling import dumps

_PATIENCE = 60.0
"""Seconds after which a fork that has not answered is given up: a lock that a thread held when it was made is never let go of there."""

_END_WITH_PARENT = 1
"""Linux's PR_SET_PDEATHSIG."""

_allowed = False
_idle: SecondProcess | None = None
"""The fork that was made and has no function yet."""

_second = False


def allow() -> None:
    """Let this process have a fork, where it has a second processor; from a process that has run nothing yet."""
    global _allowed
    _allowed = sys.platform == "linux" and len(os.sched_getaffinity(0)) > 1


def fork() -> None:
    """Make the fork now, where there may be one and there is none yet: before the first backward of this process."""
    global _allowed, _idle
    if _allowed:
        _allowed, _idle = False, SecondProcess()


def is_second() -> bool:
    """Return whether this process is such a fork."""
    return _second


class SecondProcess:
    """A fork that calls one function, some calls at a time."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("fork")
        self._own, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other, self._own, os.getpid()), daemon=True)
        self._process.start()
        other.close()  # so that the end of the fork is seen here
        self._asked = 0
        self._ended = False

    def begin(self, function: Callable[..., Any]) -> None:
        """Give the function that is to be called."""
        self._send(function)

    def ask(self, *calls: tuple[Any, ...]) -> None:
        """Call the function there with each of these arguments, one call after the other; `answers` gives what they returned.

        They go in one message, and so do the answers: each process waits until the other one has read what it writes.
        """
        self._asked = len(calls)
        if calls:
            self._send(calls)

    def answers(self) -> list[Any]:
        """Wait for what the calls returned, in their order; None for one that raised an error, and for all where the process has died."""
        asked, self._asked = self._asked, 0
        if not asked or self._ended:
            return [None] * asked
        try:
            if self._own.poll(_PATIENCE * asked):
                answers: list[Any] = pickle.loads(self._own.recv_bytes())
                return answers
        except (EOFError, ConnectionError):
            pass  # it has died
        self.close()
        return [None] * asked

    def _send(self, what: Any) -> None:
        if self._ended:
            return
        try:
            self._own.send_bytes(dumps(what))
        except ConnectionError:
            self.close()

    def close(self) -> None:
        """End it, whatever it does."""
        if self._ended:
            return
        self._ended = True
        self._process.kill()
        self._process.join()
        self._own.close()


@contextmanager
def second_process(function: Callable[..., Any]) -> Iterator[SecondProcess | None]:
    """Give a fork that calls `function`, for as long as the context takes; None where this process may not have one, or has had it."""
    global _idle
    fork()
    second, _idle = _idle, None
    if second is None:
        yield None
        return
    second.begin(function)
    try:
        yield second
    finally:
        second.close()


def _serve(here: Connection, there: Connection, parent: int) -> None:
    """Answer calls until the other process ends."""
    import torch

    global _second
    _second = True
    if sys.platform == "linux":  # as `allow` sees to
        # in the midst of a call too: it holds the pipes that are read until all who write to them have ended
        ctypes.CDLL(None).prctl(_END_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # which ends the search, and not a run
    torch.set_num_threads(1)  # the threads that operators share are not in a fork, and would be waited for
    there.close()
    function: Callable[..., Any] | None = None
    while True:
        try:
            if function is None:
                function = pickle.loads(here.recv_bytes())
            calls = pickle.loads(here.recv_bytes())
        except (EOFError, ConnectionError):
            os._exit(0)  # as the process that it is a fork of
        answers = [_answer(function, arguments) for arguments in calls]
        try:
            here.send_bytes(dumps(answers))
        except ConnectionError:
            os._exit(0)


def _answer(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    try:
        return function(*arguments)
    except Exception:  # noqa: BLE001
        return None  # the process that asks runs it itself, and tells
