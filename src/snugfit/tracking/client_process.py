"""A tracker's client in a process of its own: what it starts, prints, installs, waits for or breaks does not reach the run.

The process is low in priority, until it is waited for and where the system lets that be changed back, and ends with the one that it was started by, however that one ends. Requests and answers are pickles
through its standard streams; what the client prints goes nowhere.
"""

from __future__ import annotations

import atexit
import os
import pickle
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from threading import Timer
from typing import Any

from snugfit.system.user_objects import load_object
from snugfit.tracking.backend import FAILURES, Backend, Batch, RunGone, reason

_MODULE = "snugfit.tracking.client_process"
_SECONDS = 60.0
"""Time after which a client that has not answered is ended; a new one is begun with the next batch."""
_NICE = 5


class ClientFailed(Exception):
    """A client that raised an error, died or did not answer."""


@dataclass(frozen=True)
class Client:
    """A client that the process is to make: `package.module:Class`, and its arguments."""

    path: str
    arguments: Mapping[str, Any]

    def make(self) -> Backend:
        made: Backend = load_object(self.path, setting="track")(**self.arguments)
        return made


class ClientProcess:
    """A backend whose client is in another process, begun with the first request and anew after that one has died."""

    def __init__(self, client: Client, seconds: float = _SECONDS) -> None:
        self._client, self._seconds = client, seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._opened = ("", 0)

    def open(self, run_id: str | None, name: str, start_ms: int) -> str:
        """Create or continue the run there."""
        self._opened = name, start_ms
        opened: str = self._ask("open", run_id, name, start_ms)
        return opened

    def send(self, run_id: str, batch: Batch) -> None:
        """Have it store a batch."""
        if self._process is None:
            self._ask("open", run_id, *self._opened)
        self._ask("send", run_id, batch)

    def hurry(self) -> None:
        """Give the process the priority of this one, as it is waited for; a system may not let that be done."""
        if (process := self._process) is not None and hasattr(os, "setpriority"):
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, process.pid, os.getpriority(os.PRIO_PROCESS, 0))

    def close(self) -> None:
        """Have it end its run, and end it.

        Raises:
            ClientFailed: it says what is not stored.
        """
        if self._process is None:
            return
        try:
            self._ask("close")
        finally:
            self._end()

    def _ask(self, method: str, *arguments: Any) -> Any:
        process = self._process or self._begin()
        assert process.stdin is not None
        assert process.stdout is not None
        limit = Timer(self._seconds, process.kill)
        limit.daemon = True
        limit.start()
        kind, value = "died", None
        with suppress(OSError, EOFError, pickle.UnpicklingError):
            pickle.dump((method, arguments), process.stdin)
            process.stdin.flush()
            kind, value = pickle.load(process.stdout)
        if kind == "died":
            late = not limit.is_alive()
            self._end()
            end = (
                f"did not answer within {self._seconds:g} s"
                if late
                else f"ended with code {process.returncode}"
            )
            value = f"the process of its client {end}."
        limit.cancel()
        if kind == "gone":
            raise RunGone(value)
        if kind in ("error", "died"):
            raise ClientFailed(value)
        return value

    def _begin(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", _MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            # a Ctrl-C is for the run, which ends this one when it is done
            start_new_session=True,
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),  # as Windows calls that
        )
        assert process.stdin is not None
        pickle.dump(self._client, process.stdin)
        self._process = process
        atexit.register(self._end)
        return process

    def _end(self) -> None:
        """End the process, whatever it does."""
        process, self._process = self._process, None
        atexit.unregister(self._end)
        if process is None:
            return
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            assert stream is not None
            with suppress(OSError):  # what was not sent
                stream.close()


def main() -> None:
    """Answer requests until the other process closes the client, or has ended."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())  # a client that prints would spoil the answers
    if hasattr(os, "nice"):
        os.nice(_NICE)
    client: Client = pickle.load(sys.stdin.buffer)
    backend: Backend | None = None
    while True:
        try:
            method, arguments = pickle.load(sys.stdin.buffer)
        except EOFError:
            break
        try:
            backend = backend or client.make()
            answer = "ok", getattr(backend, method)(*arguments)
        except RunGone as gone:
            answer = "gone", str(gone)
        except FAILURES as error:  # whatever it is, the other process tells it
            answer = "error", reason(error)
        with suppress(BrokenPipeError):
            pickle.dump(answer, answers)
            answers.flush()
        if method == "close":
            return
    if backend is not None:  # the run was killed: what it has sent is still stored
        backend.close()


if __name__ == "__main__":
    main()
