"""The doctor on somebody's own training script: run it under observation, then say which pitfalls were seen.

The command runs as it is, in a child process, with torch's public functions wrapped before the script imports them
(`child`, `watchers`). What it does goes into a `Log`; the `detectors` are functions of that log. The
observer reads: it draws no random number and writes to no tensor, so the script computes what it computes alone.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snugfit.doctor.findings import Finding
from snugfit.doctor.observe.detect import diagnose
from snugfit.doctor.observe.events.log import read_log
from snugfit.errors import SettingError

FOLDER_VARIABLE = "SNUGFIT_DOCTOR_FOLDER"
UPDATES_VARIABLE = "SNUGFIT_DOCTOR_UPDATES"
SECONDS_VARIABLE = "SNUGFIT_DOCTOR_SECONDS"
STOP_VARIABLE = "SNUGFIT_DOCTOR_STOP_AFTER"
GRACE_SECONDS = 30.0
POLL_SECONDS = 1.0


@dataclass(frozen=True)
class Observation:
    """The observation of one command.

    Args:
        exit_code: the command's own; negative is the signal that ended it.
        updates_seen: optimizer steps of the process that made most of them.
        stopped: whether it was stopped before its end: by the observer, because its time was over, or by Ctrl-C.
        processes: how many of the command's processes used torch.
        evaluations_seen: forward passes without a graph.
        saves_seen: checkpoints that it wrote.
        failure: traceback of the observer's own failure, after which it saw nothing more; "" if it did not fail.
        error: the last lines of the exception with which the script ended; "" where it ended otherwise.
        traced: ways in which a model was run that could not be looked at.
        unwatched: what else was not looked at, in words.
        interrupted: whether Ctrl-C stopped it.
    """

    findings: tuple[Finding, ...]
    exit_code: int
    updates_seen: int
    stopped: bool
    processes: int
    evaluations_seen: int
    saves_seen: int
    seconds: float
    failure: str = ""
    error: str = ""
    traced: tuple[str, ...] = ()
    unwatched: tuple[str, ...] = ()
    interrupted: bool = False

    @property
    def failed(self) -> bool:
        """Return whether the command failed by itself."""
        return self.exit_code != 0 and not self.stopped

    @property
    def left_out(self) -> tuple[str, ...]:
        """Return what could not be looked at, and why."""
        reasons = []
        if self.failed:
            reasons.append(f"what would have followed: the command failed, {self.ended}")
        if self.failure:
            last_line = self.failure.strip().splitlines()[-1]
            reasons.append(f"what followed a failure of the doctor's own, which is a bug of it: {last_line}")
        if self.traced:
            reasons.append(f"what ran under {' and '.join(self.traced)}")
        reasons += self.unwatched
        if not (self.updates_seen or self.unwatched or self.failed):
            reasons.append("a training: no optimizer of torch made a step")
        return tuple(reasons)

    @property
    def ended(self) -> str:
        """Return how the command ended, in words."""
        if self.stopped:
            return "stopped by Ctrl-C" if self.interrupted else "stopped by the doctor"
        if self.exit_code >= 0:
            return f"exit code {self.exit_code}"
        known = {each.value: each.name for each in signal.Signals}
        return f"by {known.get(-self.exit_code, f'signal {-self.exit_code}')}"

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        findings = [finding.as_dict() for finding in self.findings]
        return {
            **{name: value for name, value in vars(self).items() if name != "findings"},
            "failed": self.failed,
            "findings": findings,
        }


def observe(
    command: Sequence[str], *, updates: int = 8, seconds: float = 120.0, stop_after: int | None = None
) -> Observation:
    """Run `command` under observation and return what was found.

    It runs until it ends, or until `seconds` after its first forward pass, because evaluation and saving come late;
    it is then stopped at its next optimizer step or forward pass, as by `sys.exit(0)`. What it prints goes to stderr.

    Args:
        command: as typed in a shell: `["python", "train.py", "--epochs", "1"]`; `python -m`, `torchrun` and
            `accelerate launch` work too, as long as Snugfit is installed for the Python that they start.
        updates: of so many updates every parameter is looked at one by one.
        stop_after: after so many updates each process that makes them is interrupted, as by Ctrl-C.
    Raises:
        SettingError: there is no such command, or nothing that used torch was seen.
        KeyboardInterrupt: Ctrl-C came before anything was seen, or twice.
    """
    if not command or shutil.which(command[0]) is None:
        reason = f"{command[0]!r} is not a command" if command else "there is no command after --"
        raise SettingError("doctor", reason, "Write: snugfit doctor -- python train.py")
    if updates < 1 or seconds <= 0 or (stop_after is not None and stop_after < 1):
        given = f"--detailed-updates {updates}, --seconds {seconds:g}"
        if stop_after is not None:
            given += f", --stop-after {stop_after}"
        raise SettingError("doctor", f"got {given}, expected positive numbers", "Give positive numbers.")
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="snugfit-doctor-") as folder:
        exit_code, ended_by = _run(command, _environment(folder, updates, seconds, stop_after), seconds)
        logs = [read_log(path) for path in sorted(Path(folder).glob("*.json"))]
        blind = [path.read_text(encoding="utf-8") for path in sorted(Path(folder).glob("*.blind"))]
    interrupted = ended_by == "SIGINT"
    if not logs and interrupted:
        raise KeyboardInterrupt
    if not logs:
        problem = (
            f"{' '.join(command)} ended with exit code {exit_code} and never imported torch under observation"
        )
        if exit_code:
            raise SettingError(
                "doctor",
                problem,
                "Mend its own error, which stands above; it has to run that far to be looked at.",
            )
        raise SettingError("doctor", problem, "Install Snugfit for the Python that it starts.")
    seen = [log for log in logs if log.events] or logs
    for log in seen:
        log.complete = log.complete and exit_code == 0  # sys.exit(1) is no uncaught error of the process
    return Observation(
        findings=diagnose(seen),
        exit_code=exit_code,
        updates_seen=max(log.updates for log in seen),
        stopped=bool(ended_by) or any(log.stopped for log in seen),
        processes=len(seen),
        evaluations_seen=max(len(log.evaluations()) for log in seen),
        saves_seen=max(len(log.saves()) for log in seen),
        seconds=time.monotonic() - started,
        failure=next((log.failure for log in seen if log.failure), ""),
        traced=tuple(sorted({way for log in seen for way in log.traced})),
        unwatched=tuple(dict.fromkeys([*(each for log in seen for each in log.unwatched), *blind])),
        error=next((log.error for log in (*seen, *logs) if log.error), ""),  # a launcher's own comes last
        interrupted=interrupted,
    )


def _environment(folder: str, updates: int, seconds: float, stop_after: int | None) -> dict[str, str]:
    """Return the child's environment: Python imports `sitecustomize` from the bootstrap folder before the script."""
    bootstrap = str(Path(__file__).parent / "bootstrap")
    path = os.pathsep.join(filter(None, (bootstrap, os.environ.get("PYTHONPATH", ""))))
    mine = {FOLDER_VARIABLE: folder, UPDATES_VARIABLE: str(updates), SECONDS_VARIABLE: str(seconds)}
    if stop_after is not None:
        mine[STOP_VARIABLE] = str(stop_after)
    return {**os.environ, **mine, "PYTHONPATH": path}


def _run(command: Sequence[str], environment: dict[str, str], seconds: float) -> tuple[int, str]:
    """Return the exit code, and the signal that ended the command: SIGTERM where it overstayed its own deadline by the grace.

    A rank that waits for one that has stopped, or a script that sleeps, does not come to the place where it would stop.
    Ctrl-C (SIGINT) goes to the script, which has the grace to end; a second one ends it.
    """
    folder = Path(environment[FOLDER_VARIABLE])
    process = subprocess.Popen(command, env=environment, stdout=2, start_new_session=True)
    try:
        while True:
            try:
                return process.wait(timeout=POLL_SECONDS), ""
            except subprocess.TimeoutExpired:
                begun = [path.stat().st_mtime for path in folder.glob("*.begun")]
                if begun and time.time() - min(begun) > seconds + GRACE_SECONDS:
                    return _end(process, "SIGTERM"), "SIGTERM"
    except KeyboardInterrupt:
        return _end(process, "SIGINT"), "SIGINT"
    finally:
        if process.poll() is None:
            _signal(process, "SIGKILL")
            process.wait()


def _end(process: subprocess.Popen[bytes], name: str) -> int:
    _signal(process, name)
    try:
        return process.wait(timeout=GRACE_SECONDS)
    except subprocess.TimeoutExpired:
        _signal(process, "SIGKILL")
        return process.wait()


def _signal(process: subprocess.Popen[bytes], name: str) -> None:
    """Send a signal to the script and to all that it has started; Windows, which has no groups of processes, ends the script alone."""
    if hasattr(os, "killpg"):
        os.killpg(process.pid, getattr(signal, name))
    else:
        process.terminate()


__all__ = ["Observation", "observe"]
