"""Snugfit's commands in processes of their own, and what is read from the folder of a run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

STOPPED = 75
"""The exit code of a run that was stopped and can go on."""


def snugfit(*arguments: str) -> dict[str, Any]:
    """Run a command, and return its result; the progress goes to this process's stderr.

    Raises:
        CalledProcessError: it ended otherwise than by finishing, or by a stop from which it can go on.
    """
    command = [sys.executable, "-m", "snugfit", *arguments, "--json"]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, env=environment)
    if done.returncode not in (0, STOPPED):
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout)
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def newest_run(output: Path) -> Path | None:
    """Return the folder of the newest run below an output folder."""
    runs = sorted(path.parent for path in output.glob("*/*/events.jsonl"))
    return runs[-1] if runs else None


def events_of(run: Path) -> list[dict[str, Any]]:
    """Return the events of a run; a line that was torn by a kill is left out."""
    lines = (run / "events.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines if line.endswith("}")]


def has_finished(run: Path) -> bool:
    return any(event["event"] == "end" and event["status"] == "finished" for event in events_of(run))


def with_cpu_seconds(events: list[dict[str, Any]]) -> Iterator[tuple[float, dict[str, Any]]]:
    """Yield each event with the CPU seconds of the run up to it, by the clock of its updates.

    What a part of the run spent after its last update is not in it; updates that were made twice, as a kill lost them, count twice.
    """
    before = now = 0.0
    for event in events:
        if event["event"] == "run":  # a process of its own, whose clock begins anew
            before, now = before + now, 0.0
        now = event.get("metrics", {}).get("cpu_seconds", now)
        yield before + now, event


def write_recipe(path: Path, settings: Mapping[str, str]) -> Path:
    """Write a recipe from its sections as text."""
    path.write_text("".join(f"{name}: {value}\n" for name, value in settings.items()))
    return path
