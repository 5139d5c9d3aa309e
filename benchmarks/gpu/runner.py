"""The runner: each check in a process of its own, within its time, and the result written after each.

The process that runs imports torch and the models once, touches no GPU, and forks for each check; where a forked process cannot use the
GPU, each check gets a fresh process instead.
"""

from __future__ import annotations

import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from checks import DIED, ERROR, NOT_RUN, OVER_TIME, Check, Settings, run_check, write_json
from results import begun

HERE = Path(__file__).resolve().parent
LEAST_SECONDS = 5.0
"""Below which no check is begun."""
NOTED = 5.0
"""Seconds between two looks at the figures of checks that run."""


@dataclass
class Running:
    """A process with a check, and what it writes."""

    check: Check
    pid: int
    folder: Path
    deadline: float
    began: float
    seconds: float

    @property
    def log(self) -> str:
        path = self.folder / "log"
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        # hundreds of names that faulthandler writes behind the threads
        return "\n".join(line for line in lines if not line.startswith("Extension modules:"))[-6000:]

    @property
    def figures(self) -> dict[str, Any]:
        """Return what it has found so far."""
        return (self.answer("partial.json") or {}).get("figures", {})

    def answer(self, name: str) -> dict[str, Any] | None:
        path = self.folder / name
        return json.loads(path.read_text()) if path.exists() else None


@dataclass
class Runner:
    """Runs checks side by side, unless one is to be alone, until all are done or the time is up.

    Args:
        settings: of all checks; each gets a folder and the seconds of its own.
        jobs: checks that run at a time.
        report: is called with each check and how it ended.
        note: is called with each check that runs and its figures so far, every few seconds.
        fork: whether a check's process is forked from this one.
        patience: times its seconds that a check may take.
    """

    settings: Settings
    jobs: int
    report: Callable[[Check, dict[str, Any]], None]
    note: Callable[[Check, dict[str, Any]], None] = lambda check, row: None
    fork: bool = True
    patience: float = 1.0
    _running: list[Running] = field(default_factory=list)

    def run(self, checks: Sequence[Check], until: float) -> None:
        """Run all of them, in their order as far as there is room.

        Args:
            until: the moment, of `time.monotonic`, at which everything is ended.
        """
        waiting = list(checks)
        noted = time.monotonic()
        try:
            while waiting or self._running:
                while (place := self._next(waiting)) is not None and self._has_room(waiting[place]):
                    self._begin(waiting.pop(place), until)
                self._look()
                if time.monotonic() > noted + NOTED:
                    noted = time.monotonic()
                    self._note()
                if self._running:
                    time.sleep(0.02)
        finally:
            self._note()
            for each in self._running:
                end(each.pid)

    def _note(self) -> None:
        for each in self._running:
            self.note(each.check, begun(time.monotonic() - each.began, each.figures))

    def _next(self, waiting: Sequence[Check]) -> int | None:
        """Return the place of the first check that needs nothing that another one is yet to leave; None where there is none."""
        coming = {each.leaves for each in (*waiting, *(each.check for each in self._running)) if each.leaves}
        return next((place for place, each in enumerate(waiting) if each.needs not in coming), None)

    def _has_room(self, check: Check) -> bool:
        if not self._running:
            return True
        # in tiny nothing is measured that others could disturb
        busy = not self.settings.toy and (check.alone or any(each.check.alone for each in self._running))
        return not busy and len(self._running) < self.jobs

    def _begin(self, check: Check, until: float) -> None:
        left = until - time.monotonic()
        if left < LEAST_SECONDS:
            self.report(check, {"status": NOT_RUN, "reason": "the time was up"})
            return
        seconds = min(check.seconds * self.patience, left)
        folder = Path(tempfile.mkdtemp(prefix="check-", dir=self.settings.folder))
        now = time.monotonic()
        pid = (self._forked if self.fork else self._spawned)(check, folder, seconds)
        self._running.append(Running(check, pid, folder, now + seconds, now, seconds))
        self.note(check, begun(0.0, {}))

    def _threads(self, check: Check) -> int:
        """Return the threads of a check's operators: all cores, or its part of them."""
        cores = os.cpu_count() or 1
        return 1 if self.settings.toy else cores if check.alone else max(1, cores // self.jobs)

    def _forked(self, check: Check, folder: Path, seconds: float) -> int:
        sys.stdout.flush(), sys.stderr.flush()
        pid = os.fork()
        if pid:
            return pid
        status = 1
        try:
            be_checks_process(folder)
            in_process(check, self.settings, folder, seconds, self._threads(check))
            status = 0
        finally:
            os._exit(status)

    def _spawned(self, check: Check, folder: Path, seconds: float) -> int:
        command = [sys.executable, str(HERE / "run.py"), "--one", check.name, "--scratch", str(folder)]
        command += ["--seconds", str(seconds), "--device", self.settings.device, check.command]
        command += ["--threads", str(self._threads(check))]
        command += ["--toy"] if self.settings.toy else []
        command += ["--plant", self.settings.plant] if self.settings.plant else []
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            **check.environment,
        }
        process = subprocess.Popen(command, env=environment, start_new_session=True)
        process.returncode = 0  # it is waited for by its id, below
        return process.pid

    def _look(self) -> None:
        for each in list(self._running):
            ended, status, used = os.wait4(each.pid, os.WNOHANG)
            if ended:
                self._running.remove(each)
                end(each.pid, waited=True)  # what it has started goes with it
                row = self._result(each, os.waitstatus_to_exitcode(status))
                self._tell(each, {**row, "host_seconds": round(used.ru_utime + used.ru_stime, 2)})
            elif time.monotonic() > each.deadline:
                self._running.remove(each)
                with suppress(ProcessLookupError):
                    os.kill(each.pid, signal.SIGABRT)  # has faulthandler write where each thread is
                time.sleep(1.0)
                end(each.pid)
                row = {
                    "status": OVER_TIME,
                    "reason": f"ended after {each.seconds:.0f} s\n{each.log}",
                    "seconds": round(each.seconds, 1),
                    "figures": each.figures,
                }
                self._tell(each, row)

    def _result(self, each: Running, status: int) -> dict[str, Any]:
        row = each.answer("result.json")
        if row is None:
            return {
                "status": DIED,
                "reason": f"the process ended with status {status}\n{each.log}",
                "seconds": round(time.monotonic() - each.began, 1),
                "figures": each.figures,
            }
        if row["status"] == ERROR:
            row["log"] = each.log
        return row

    def _tell(self, each: Running, row: dict[str, Any]) -> None:
        """Report how a check ended; `host_seconds` are those that processors were busy for it, however many checks share them."""
        shutil.rmtree(each.folder, ignore_errors=True)
        self.report(each.check, row)


def be_checks_process(folder: Path) -> None:
    """Make this process a group of its own whose output goes to a file, and which says where it was when it is ended."""
    import faulthandler

    with suppress(PermissionError):  # it leads one already
        os.setsid()
    log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(log, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    faulthandler.enable(file=os.fdopen(os.dup(2), "w"), all_threads=True)


def in_process(check: Check, settings: Settings, folder: Path, seconds: float, threads: int) -> None:
    """Run a check here and write its result into the folder."""
    import torch

    os.environ.update(check.environment)
    torch.set_num_threads(threads)
    if wheels := os.environ.get("SNUGFIT_WHEELS"):
        sys.path.append(str(Path(wheels, "checks")))
        importlib.invalidate_caches()
    own = Settings(
        settings.device,
        settings.toy,
        folder,
        settings.plant,
        seconds,
        folder / "partial.json",
    )
    write_json(folder / "result.json", run_check(check, own))


def end(pid: int, waited: bool = False) -> None:
    """End the process group of a check's process, whatever it does, and wait for it."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    if not waited:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)
