"""Processes forked from one that has imported everything: starting Python with torch costs seconds, a fork milliseconds."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import IO, Any
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
PRELOADED = "tests.ranks.preloaded"
_HANDLED = [signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT] if hasattr(signal, "SIGHUP") else [signal.SIGTERM]


def forking() -> ForkServerContext:
    """Return what starts processes from the one that has imported everything, which is started at the first call."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([PRELOADED])
    # it looks for modules where this process does, and not in a test's folder
    path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    # torch reads its level when it is imported, which a rank of its own sets before
    with mock.patch.dict(os.environ, PYTHONPATH=path, TORCH_CPP_LOG_LEVEL="ERROR"):
        forkserver.ensure_running()
    return context


def run_command(arguments: Sequence[str], environment: Mapping[str, str], out: Path, err: Path) -> int | None:
    """Run `snugfit` in a process whose ranks are forked from it; returns its exit code.

    Output goes to these files.
    """
    process = forking().Process(
        target=_command, args=([*arguments], dict(environment), os.getcwd(), str(out), str(err))
    )
    process.start()
    process.join()
    return process.exitcode


def _command(arguments: list[str], environment: dict[str, str], folder: str, out: str, err: str) -> None:
    from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

    os.chdir(folder)
    with (
        open(out, "wb") as stdout,
        open(err, "wb") as stderr,
        mock.patch.object(subprocess_handler, "Popen", ForkedRank),
    ):
        _be(["snugfit", *arguments], environment, stdout, stderr)


class ForkedRank:
    """A rank as torchrun's agent sees it, a `subprocess.Popen`: `python -m snugfit …` in a fork of this process."""

    def __init__(
        self,
        args: Sequence[str],
        env: Mapping[str, str],
        stdout: IO[Any] | None,
        stderr: IO[Any] | None,
        start_new_session: bool,
    ) -> None:
        assert args[:3] == (sys.executable, "-m", "snugfit"), args
        self.args = args
        self.returncode: int | None = None
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            if start_new_session:
                os.setsid()
            for number in _HANDLED:
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            _be(args[2:], env, stdout, stderr)

    def poll(self) -> int | None:
        """Return how it ended; None while it runs."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return how it ended, once it has.

        Raises:
            subprocess.TimeoutExpired: it has not within so many seconds.
        """
        end = time.monotonic() + (float("inf") if timeout is None else timeout)
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            time.sleep(0.01)
        return code


def _be(
    command: Sequence[str], environment: Mapping[str, str], stdout: IO[Any] | None, stderr: IO[Any] | None
) -> None:
    """Do in this process what `python -m snugfit …` does in one of its own, and end it."""
    from snugfit.cli import main

    code: object = 1
    try:
        for stream, number in ((stdout, 1), (stderr, 2)):
            if stream is not None:
                os.dup2(stream.fileno(), number)
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = [*command]
        code = main([*command[1:]])
    except SystemExit as end:
        code = end.code
    except BaseException:  # noqa: BLE001 - it goes to the output, and the exit code says so
        traceback.print_exc()
    finally:
        for output in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                output.flush()
        os._exit(code if isinstance(code, int) else int(code is not None))
