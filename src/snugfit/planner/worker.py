"""A process of its own for the planner: what it does to torch to pretend a device touches no process that trains.

The parent starts it at once, so that it loads its libraries while the parent makes up its mind what to ask.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import IO, Any

import cloudpickle

from snugfit.errors import PlannerFailed, SettingError, SnugfitError

_MODULE = "snugfit.planner.worker"
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
            sent = cloudpickle.dumps((function, arguments))
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
    """Read what is to be called, call it, write the answer."""
    answer = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # libraries that print would spoil it
    ahead = threading.Thread(target=_load)
    ahead.start()
    sent = sys.stdin.buffer.read()
    ahead.join()
    _answer(sent, answer)
    sys.stderr.flush()
    os._exit(0)  # what is left of a pretended device is not taken down piece by piece


def _load() -> None:
    """What every plan needs, while the parent is still busy."""
    import snugfit.planner.plan  # noqa: F401


def _answer(sent: bytes, answer: IO[bytes]) -> None:
    try:
        function, arguments = pickle.loads(sent)
        found = "found", function(*arguments)
    except SnugfitError as error:
        found = "error", error.with_traceback(None)
    with answer:
        cloudpickle.dump(found, answer)


if __name__ == "__main__":
    main()
