from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from snugfit.errors import RunFolderError
from snugfit.tracking.spool import read_events

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 120.0


class Child:
    """A scenario that runs in a process of its own."""

    def __init__(self, ask: Callable[..., int], function: str, log: Path, settings: dict[str, Any]) -> None:
        self._ask = ask
        self.log = log
        self.ended: int | None = None
        self.pid = ask(run=f"tests.faults.scenarios:{function}", log=str(log), **{"with": settings})

    def signal(self, number: signal.Signals, *, group: bool = False) -> None:
        (os.killpg if group else os.kill)(self.pid, number)

    def wait(self) -> int:
        """How it ended: its exit code, or minus the signal that killed it."""
        if self.ended is None:
            self.ended = self._ask(wait=self.pid)
        return self.ended

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Until the condition holds; a child that ends before is a failure."""
        end = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            running = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
            assert running, f"ended too early: {self.log.read_text()}"
            assert time.monotonic() < end, f"nothing came: {self.log.read_text()}"
            time.sleep(0.005)

    def wait_for_updates(self, output: Path, count: int) -> None:
        self.wait_for(lambda: updates(output) >= count)


def updates(output: Path) -> int:
    """Updates that the only run under `output` has told of."""
    for spool in output.glob("*/*/events.jsonl"):
        try:
            return sum(event["event"] == "update" for event in read_events(spool))
        except RunFolderError:
            return 0
    return 0


@pytest.fixture(scope="session")
def nursery() -> Iterator[Callable[..., int]]:
    """Asks the process that forks scenarios."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.nursery"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    def ask(**request: Any) -> int:
        stdin.write(json.dumps(request) + "\n")
        stdin.flush()
        answer: int = json.loads(stdout.readline())
        return answer

    yield ask
    stdin.write("\n")  # workers that other tests forked meanwhile may hold the pipe open
    stdin.close()
    process.wait(timeout=PATIENCE_SECONDS)


@pytest.fixture
def start(nursery: Callable[..., int], tmp_path: Path) -> Iterator[Callable[..., Child]]:
    """Starts a function of `tests.faults.scenarios`, and ends what is left of it after the test."""
    children: list[Child] = []

    def start_scenario(function: str, **settings: Any) -> Child:
        plain = {name: str(value) if isinstance(value, Path) else value for name, value in settings.items()}
        children.append(Child(nursery, function, tmp_path / f"{function}-{len(children)}.log", plain))
        return children[-1]

    yield start_scenario
    for child in children:
        if child.ended is None:
            child.signal(signal.SIGKILL, group=True)
            child.wait()
