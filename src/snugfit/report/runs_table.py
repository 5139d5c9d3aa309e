"""Runs beside each other: what became of each, and the settings in which they differ."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snugfit.errors import RunFolderError, SettingError, nearest
from snugfit.kit.metric_directions import name_and_direction
from snugfit.report.series import as_number
from snugfit.report.story import IN_PROGRESS, Story, mapping, read_story
from snugfit.results.run_folder import RunFolder
from snugfit.tracking.spool import SPOOL_NAME
from snugfit.tracking.translate import flatten, techniques_by_name
from snugfit.units import format_seconds

KILLED = "killed"
"""A run that has written no end, and that no process trains."""

_ABSENT = "–"
_WIDEST = 36
_SAME = ("name", "folder", "output", "track")
"""Settings that say nothing about what is learned, or how it fits."""


@dataclass(frozen=True)
class RunRow:
    """A run in one line.

    Args:
        metrics: of the best update, `metric` among them, which decided.
        settings: of its recipe, by their whole names.
        seconds: that it has worked.
    """

    folder: str
    started: float
    status: str
    updates: int
    seconds: float
    metric: str | None
    metrics: Mapping[str, float]
    settings: Mapping[str, Any]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "folder": self.folder,
            "started": self.started,
            "status": self.status,
            "updates": self.updates,
            "seconds": self.seconds,
            "best": self.metric,
            "metrics": dict(self.metrics),
        }


def read_runs(places: Sequence[Path]) -> list[RunRow]:
    """Return runs, the newest first.

    Args:
        places: folders of runs, of folders of runs, such as `runs/`, or several of these.
    Raises:
        RunFolderError: one of them holds no run.
    """
    rows: dict[Path, RunRow] = {}
    for place in places:
        folders = [place] if (place / SPOOL_NAME).exists() else []
        folders = folders or [
            path.parent for level in ("*", "*/*") for path in place.glob(f"{level}/{SPOOL_NAME}")
        ]
        if not folders:
            what = "holds no run" if place.is_dir() else "is not there"
            raise RunFolderError(place, what, "Name a run's folder, or one of runs, such as runs/.")
        for folder in folders:
            if (folder / SPOOL_NAME).stat().st_size:  # else it has only been begun
                rows[folder.resolve()] = _row(folder)
    return sorted(rows.values(), key=lambda row: -row.started)


def sorted_by(rows: Sequence[RunRow], metric: str) -> list[RunRow]:
    """Return runs by a metric of their best update, the best first; those without it come last.

    Args:
        metric: as `evaluate.best` names it.
    Raises:
        SettingError: no run has it, or it is not known in which direction it is better.
    """
    known = sorted({each for row in rows for each in row.metrics})
    if (asked := metric.rpartition(":")[2]) not in known:
        raise SettingError("--sort", f"no run has '{asked}'", nearest(asked, known))
    name, higher = name_and_direction("--sort", metric)

    def place(row: RunRow) -> tuple[bool, float]:
        value = row.metrics.get(name, 0.0)
        return name not in row.metrics, -value if higher else value

    return sorted(rows, key=place)


def differences(rows: Sequence[RunRow]) -> dict[str, list[Any]]:
    """Return the settings in which runs differ, each with the value of every run, in their order; None where one has no such setting."""
    names = dict.fromkeys(name for row in rows for name in row.settings)
    values = {name: [row.settings.get(name) for row in rows] for name in names}
    return {name: each for name, each in values.items() if any(value != each[0] for value in each)}


def table(rows: Sequence[RunRow]) -> list[str]:
    """Return runs as lines, under a head."""
    metrics = list(dict.fromkeys(name for row in rows for name in (row.metric, *row.metrics) if name))
    cells = [["run", "began", "status", "updates", "time", *metrics]]
    for row in rows:
        began = time.strftime("%Y-%m-%d %H:%M", time.localtime(row.started))
        scores = [f"{row.metrics[name]:.4g}" if name in row.metrics else _ABSENT for name in metrics]
        cells.append(
            [row.folder, began, row.status, f"{row.updates:,}", format_seconds(row.seconds), *scores]
        )
    return _aligned(cells)


def comparison(rows: Sequence[RunRow]) -> list[str]:
    """Return the settings in which runs differ as lines: a column for each run, in their order."""
    differing = differences(rows)
    if not differing:
        return ["The recipes are the same."]
    head = ["differs", *(Path(row.folder).name for row in rows)]
    return _aligned([head, *([name, *map(_shown, values)] for name, values in differing.items())])


def _row(folder: Path) -> RunRow:
    story = read_story(folder)
    metrics = {} if story.best is None else story.best[1]
    numbers = {name: number for name, value in metrics.items() if (number := as_number(value)) is not None}
    return RunRow(
        folder=str(folder),
        started=story.started,
        status=_status(story, folder),
        updates=story.last_update,
        seconds=story.seconds,
        metric=story.monitored if story.monitored in numbers else None,
        metrics=numbers,
        settings=_settings(story),
    )


def _status(story: Story, folder: Path) -> str:
    return KILLED if story.status == IN_PROGRESS and not RunFolder(folder).busy else story.status


def _settings(story: Story) -> dict[str, Any]:
    recipe = {key: value for key, value in story.recipe.items() if key not in _SAME}
    plan = mapping(story.run.get("plan"))  # as it was resolved
    recipe |= {"plan": plan} if plan else {}
    if "techniques" in recipe:
        recipe["techniques"] = techniques_by_name(recipe["techniques"])
    return dict(flatten(recipe))


def _shown(value: Any) -> str:
    text = _ABSENT if value is None else str(value)
    return text if len(text) <= _WIDEST else f"…{text[1 - _WIDEST :]}"


def _aligned(cells: Sequence[Sequence[str]]) -> list[str]:
    """Return cells as lines, each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]
