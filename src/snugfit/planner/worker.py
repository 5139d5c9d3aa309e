"""A process of its own for the planner: what it does to torch to pretend a device touches no process that trains.

The parent starts it at once, so that it loads its libraries while the parent makes up its mind what to ask.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import IO, Any

import cloudpickle

from snugfit.errors import PlannerFailed, SettingError, SnugfitError
from snugfit.planner.choice import channel
from snugfit.planner.choice.channel import Progress
from snugfit.system.garbage import done_loading, loading
from snugfit.system.pickling import dumps
from snugfit.system.user_objects import import_path

_MODULE = "snugfit.planner.worker"
_GRACE = 60.0
"""Seconds that a search has to end in when it is asked to."""

_LINES = 12
"""Lines of a worker's own words that are told where it died."""


Watch = Callable[[Progress], None]
"""What is told how far a search is."""


def ignore(progress: Progress) -> None:
    """Show nothing of it."""


def wait() -> None:
    """Do nothing while it plans."""


def call(path: str, *arguments: Any) -> Any:
    """Call the function `module:function`, which whoever asks for it need not have imported.

    >>> call("math:sqrt", 4.0)
    2.0
    """
    module, _, function = path.partition(":")
    return getattr(import_module(module), function)(*arguments)


class Worker:
    """A process that runs one function and gives back what it returned.

    Args:
        hide_gpu: whether it sees no GPU of this machine.
        watch: is told how far the search is.
        best_so_far: whether an interrupt (Ctrl-C) ends the search with the best plan so far; a second one ends the process. Otherwise
            the first one does.

    >>> worker = Worker()
    >>> worker.run(divmod, 7, 2, timeout=120)
    (3, 1)
    """

    def __init__(
        self,
        hide_gpu: bool = True,
        watch: Watch = ignore,
        best_so_far: bool = False,
    ) -> None:
        self.watch, self._best_so_far = watch, best_so_far
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        if hide_gpu:  # one of this machine would answer where another one is pretended
            environment["CUDA_VISIBLE_DEVICES"] = ""
        self._process = subprocess.Popen(
            [sys.executable, "-m", _MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
        )

    def load(self, *modules: str) -> None:
        """Have it load modules that it will need, before it is asked; one that is missing is told by what needs it.

        Args:
            modules: by their names; `module:function` is of a function that loads some.
        """
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has died, which `run` tells
            os.write(self._process.stdin.fileno(), pickle.dumps(modules))

    def run(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        timeout: float,
        way_out: str = "",
        folder: Path | None = None,
        meanwhile: Callable[[], None] = wait,
    ) -> Any:
        """Call `function` there.

        Args:
            function: and its arguments are sent as they are; classes of the user's own script by value.
            timeout: in seconds, after which the search has to end with the best plan so far.
            way_out: what to do where it gives no answer in that time, as a sentence.
            folder: where modules of the user's own are looked for first that the arguments are of, such as techniques.
            meanwhile: what this process does beside it.
        Raises:
            SettingError: they cannot be sent.
            PlannerFailed: the process died, or it took too long.
            SnugfitError: what the function raised.
        """
        try:
            sent = pickle.dumps(()) + pickle.dumps(folder) + dumps((function, arguments))
        except Exception as error:
            self.close()
            raise SettingError(
                "plan",
                f"the model, the loss or the batch cannot be handed to a process of its own: {error}",
                "Give functions that can be pickled.",
            ) from error
        messages: Queue[tuple[str, Any]] = Queue()
        words: deque[bytes] = deque(maxlen=_LINES)
        assert self._process.stdin and self._process.stdout and self._process.stderr
        threads = [
            Thread(target=_write, args=(self._process.stdin, sent), daemon=True),
            Thread(target=_read, args=(self._process.stdout, messages), daemon=True),
            Thread(target=_listen, args=(self._process.stderr, words), daemon=True),
        ]
        for thread in threads:
            thread.start()
        try:
            meanwhile()
            kind, payload = self._wait(messages, timeout, way_out)
        except BaseException:
            self.close()
            raise
        code = self._process.wait()
        for thread in threads:
            thread.join()
        if kind == "error":
            raise payload
        if kind == "found":
            return payload
        last_words = b"".join(words).decode(errors="replace").strip()
        raise PlannerFailed(f"plan: the process that plans ended with code {code}:\n{last_words}")

    def _wait(self, messages: Queue[tuple[str, Any]], timeout: float, way_out: str) -> tuple[str, Any]:
        """Return the last message; when the time is over, the search is asked to end, and has some time for that too."""
        asked, late, until = False, False, time.monotonic() + timeout
        no_answer = PlannerFailed(f"plan: no answer after {timeout:g} seconds. {way_out}".rstrip())
        while True:
            try:
                kind, payload = messages.get(timeout=max(0.0, until - time.monotonic()))
                if (
                    kind == "ended" and late
                ):  # a process that still loads what it needs ends when it is asked to
                    raise no_answer
                if kind != "progress":
                    return kind, payload
                self.watch(payload)
                continue
            except Empty as error:
                if asked:
                    raise no_answer from error
                late = True
            except KeyboardInterrupt:
                if asked or not self._best_so_far:
                    raise
            asked, until = True, time.monotonic() + min(timeout, _GRACE)
            if sys.platform != "win32":  # there, a console's Ctrl-C reaches all its processes
                self._process.send_signal(signal.SIGINT)

    def close(self) -> None:
        """End it, whatever it does."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            assert stream is not None
            with suppress(BrokenPipeError, ValueError):  # what was not sent; or a thread is at its end
                stream.close()


def _write(stream: IO[bytes], sent: bytes) -> None:
    with suppress(BrokenPipeError), stream:  # it has died, which `run` tells
        stream.write(sent)


def _read(stream: IO[bytes], messages: Queue[tuple[str, Any]]) -> None:
    """Hand on messages until the last one, or until the process has ended without."""
    kind = "progress"
    while kind == "progress":
        try:
            kind, payload = pickle.load(stream)
        except (EOFError, pickle.UnpicklingError):
            kind, payload = "ended", None
        except ValueError:
            if not stream.closed:
                raise
            kind, payload = "ended", None  # `close` came between two reads
        messages.put((kind, payload))


def _listen(stream: IO[bytes], words: deque[bytes]) -> None:
    """Keep the last lines that the process has written to a person."""
    with suppress(ValueError):  # `close` came between two lines
        words.extend(stream)


def main() -> None:
    """Load what is needed, read what is to be called, call it, write the answer."""
    answer = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    channel.connect(partial(_tell, answer))
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # libraries that print would spoil it
    with loading():  # the process is to be as large as one that trains, which does so too
        modules: tuple[str, ...] = ("snugfit.planner.plan",)
        while modules:
            for name in modules:
                with suppress(ImportError):
                    call(name) if ":" in name else import_module(name)
            modules = pickle.load(sys.stdin.buffer)
        from snugfit.system.second_process import allow

        allow()
        _answer(sys.stdin.buffer, answer)
    sys.stderr.flush()
    os._exit(0)  # what is left of a pretended device is not taken down piece by piece


def _tell(answer: IO[bytes], progress: Progress) -> None:
    pickle.dump(("progress", progress), answer)
    answer.flush()


def _answer(asked: IO[bytes], answer: IO[bytes]) -> None:
    try:
        with import_path(pickle.load(asked)):
            function, arguments = pickle.load(asked)
        done_loading()
        reply = "found", function(*arguments)
    except SnugfitError as error:
        reply = "error", error.with_traceback(None)
    with answer:
        cloudpickle.dump(reply, answer)


if __name__ == "__main__":
    main()
