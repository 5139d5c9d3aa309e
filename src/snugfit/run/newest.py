"""The newest run that can go on, for those who do not want to name it. To import it loads no torch."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from snugfit.errors import RunFolderError
from snugfit.results.run_folder import RECIPE, RunFolder
from snugfit.tracking.spool import SMOKE

LAST: Literal["last"] = "last"
"""In place of a run's folder: the newest run that can go on."""

_TAIL_BYTES = 65536

_NOT_OF_TRAINING = ("note", "warning", "register", "pictures", "files")
"""Events that tell nothing of the training, and may come after its end."""


def newest_resumable(
    output: Path, name: str | None = None, suits: Callable[[RunFolder], bool] = lambda _: True
) -> RunFolder:
    """Return the folder of the newest run that was stopped or killed and has a checkpoint.

    Args:
        output: the folder of all runs.
        name: of the run; None for any.
        suits: whether a run may be taken, whatever became of it.
    Raises:
        RunFolderError: there is none.
    """
    for folder in _newest_first(output, name):
        can_go_on = folder.has_checkpoints and not _is_over(folder) and _smoke_option(folder.events) is None
        if suits(folder) and can_go_on and not folder.busy:
            return folder
    runs = output if name is None else output / name
    raise RunFolderError(
        "resume",
        f"no run in {runs} was stopped and has a checkpoint",
        "Name a run's folder, or begin a new run.",
    )


def run_to_resume(named: str | Path | None) -> Path:
    """Return the run's folder that is named, or of a folder of runs (runs/, where none is) the newest of a recipe that was stopped or killed.

    Raises:
        RunFolderError: there is none that can go on, or what is named is no run of a recipe.
    """
    output = Path(named or "runs")
    if named is None or holds_runs(output):
        return newest_resumable(output, suits=lambda folder: (folder.path / RECIPE).exists()).path
    recipe_file(output)
    return output


def recipe_file(run: Path) -> Path:
    """Return the recipe of a run.

    Raises:
        RunFolderError: not a run's folder, or one of a run that was made in Python or that was a smoke run.
    """
    folder = RunFolder.open(run)
    path = folder.path / RECIPE
    if not path.exists():
        raise RunFolderError(
            run, f"has no {RECIPE}", "Go on with it in Python, where it was made: snugfit.train(…, resume=…)."
        )
    if smoke := _smoke_option(folder.events):
        raise RunFolderError(
            run,
            f"was a smoke run ({smoke}), which is cut short, so that nothing goes on from it",
            f"Train what it tried: snugfit train {shlex.quote(os.path.relpath(path))}",
        )
    return path


def holds_runs(folder: Path) -> bool:
    """Return whether a folder is one of runs, as `output` is, and no run's own."""
    return not (folder / "events.jsonl").exists() and any(folder.glob("*/*/events.jsonl"))


def _newest_first(output: Path, name: str | None) -> Iterator[RunFolder]:
    """Yield the folders of runs; their names begin with the time of their beginning."""
    events = output.glob("*/*/events.jsonl") if name is None else (output / name).glob("*/events.jsonl")
    for path in sorted((each.parent for each in events), key=lambda each: each.name, reverse=True):
        yield RunFolder(path.resolve())


def _is_over(folder: RunFolder) -> bool:
    """Return whether the run has come to its end, as its last event says."""
    last = _last_event(folder.events)
    return last.get("event") == "end" and not last.get("resumable")


def _smoke_option(events: Path) -> str | None:
    """Return the option that made it a smoke run, as its first event of training says; None of other runs."""
    if not events.is_file():
        return None
    with events.open("rb") as file:
        for line in file:
            try:
                event = json.loads(line)
            except ValueError:  # torn when the process died
                continue
            if isinstance(event, dict) and event.get("event") == "run":
                option = event.get(SMOKE)
                return option if isinstance(option, str) else None
    return None


def _last_event(events: Path) -> dict[str, Any]:
    """Return the last of the events that tell of the training, without reading those before; empty where it cannot be read."""
    with events.open("rb") as file:
        file.seek(max(0, events.stat().st_size - _TAIL_BYTES))
        lines = file.read().splitlines()
    for line in reversed(lines):
        try:
            event = json.loads(line)
        except ValueError:  # torn when the process died, or cut by the tail's beginning
            continue
        if isinstance(event, dict) and event.get("event") not in _NOT_OF_TRAINING:
            return event
    return {}
