"""A process of its own for the planner: what it does to torch to pretend a device touches no process that trains.

The parent starts it at once, so that it loads its libraries while the parent makes up its mind what to ask. Garbage is looked for
meanwhile among what is new alone: to look through all that was loaded again and again takes a good part of the time, and not to look
at all leaves the process larger than one that trains, whose size it has to tell.
"""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from typing import IO, Any

import cloudpickle

from snugfit.errors import PlannerFailed, SettingError, SnugfitError

_MODULE = "snugfit.planner.worker"
_ONLY_NEW = (20_000, 1_000, 1_000)
"""After how many objects garbage is looked for among the new ones, and after how many such times among older ones: never."""

_LINES = 12
"""Lines of a worker's own words that are told where it died."""


class Worker:
    """A process that runs one function and gives back what it returned.

    Args:
        hide_gpu: whether it sees no GPU of this machine.

    >>> worker = Worker()
    >>> worker.run(divmod, 7, 2, timeout=120)
    (3, 1)
    """

    def __init__(self, hide_gpu: bool = True) -> None:
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
        """Have it load modules that it will need, before it is asked; one that is missing is told by what needs it."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has died, which `run` tells
            os.write(self._process.stdin.fileno(), pickle.dumps(modules))

    def run(self, function: Callable[..., Any], *arguments: Any, timeout: float) -> Any:
        """Call `function` there.

        Args:
            function: and its arguments are sent as they are; classes of the user's own script by value.
            timeout: in seconds.
        Raises:
            SettingError: they cannot be sent.
            PlannerFailed: the process died, or it took too long.
            SnugfitError: what the function raised.
        """
        try:
            sent = pickle.dumps(()) + cloudpickle.dumps((function, arguments))
        except Exception as error:
            self.close()
            raise SettingError(
                f"plan: the model, the loss or the batch cannot be handed to a process of its own: {error}. Give functions that can "
                "be pickled."
            ) from error
        try:
            answer, words = self._process.communicate(sent, timeout=timeout)
        except subprocess.TimeoutExpired as error:
            self.close()
            raise PlannerFailed(
                f"plan: no answer after {timeout:g} seconds. Plan with fewer choices (search=False), or give the planner more time."
            ) from error
        if self._process.returncode != 0 or not answer:
            said = "\n".join(words.decode(errors="replace").strip().splitlines()[-_LINES:])
            raise PlannerFailed(
                f"plan: the process that plans ended with code {self._process.returncode}:\n{said}"
            )
        kind, found = pickle.loads(answer)
        if kind == "error":
            raise found
        return found

    def close(self) -> None:
        """End it, whatever it does."""
        self._process.kill()
        self._process.communicate()


def main() -> None:
    """Load what is needed, read what is to be called, call it, write the answer."""
    answer = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # libraries that print would spoil it
    usual = gc.get_threshold()
    gc.set_threshold(*_ONLY_NEW)
    modules: tuple[str, ...] = ("snugfit.planner.plan",)
    while modules:
        for name in modules:
            with suppress(ImportError):
                import_module(name)
        modules = pickle.load(sys.stdin.buffer)
    _answer(sys.stdin.buffer, answer, usual)
    sys.stderr.flush()
    os._exit(0)  # what is left of a pretended device is not taken down piece by piece


def _answer(asked: IO[bytes], answer: IO[bytes], usual: tuple[int, int, int]) -> None:
    try:
        function, arguments = pickle.load(asked)
        gc.freeze()
        gc.set_threshold(*usual)
        found = "found", function(*arguments)
    except SnugfitError as error:
        found = "error", error.with_traceback(None)
    with answer:
        cloudpickle.dump(found, answer)


if __name__ == "__main__":
    main()
