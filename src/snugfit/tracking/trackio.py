"""Trackio as a tracker: a run's events in its local database, or at the server or Space that its own variables name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from snugfit.tracking.backend import (
    Batch,
    by_step,
    logged_value,
    project_name,
    shown_points,
    sources_of,
    table,
    typed,
)

NAME = "trackio"
"""Of the tracker, and of the file that says how far it has got."""


class TrackioBackend:
    """Trackio's client behind the follower: a metric is a point at its update, as are pictures and histograms; settings are the config, tags are a table.

    The database is Trackio's own, of all runs: `TRACKIO_DIR`, else a folder in Hugging Face's cache. Trackio writes rows half a second
    after it has them, and a batch that is sent twice draws the same points twice. Meant for a process of its own, as it has one run at a time.

    Args:
        folder: of the run.
        project: of Trackio.
        measure: whether Trackio measures the machine too, where its extras are installed.
    """

    def __init__(self, folder: Path, project: str, measure: bool = False) -> None:
        self.folder, self.project, self.measure = folder, project_name(project), measure
        self._run: Any = None
        self._name = ""
        self._tags: dict[str, str] = {}
        self._step = 0

    def open(self, run_id: str | None, name: str, start_ms: int) -> str:  # noqa: ARG002  # it is known by its name
        """Remember the name of the run, under which Trackio continues it; it begins with the first batch, which has its settings."""
        self._name = name
        return name

    def send(self, run_id: str, batch: Batch) -> None:  # noqa: ARG002
        """Hand a batch to Trackio."""
        import trackio

        if self._run is None:
            self._begin(batch)
        for step, points in by_step(shown_points(batch, self.folder)):
            self._step = step
            self._run.log({each.name: logged_value(each, self.folder, trackio) for each in points}, step=step)
        if batch.tags or batch.untagged:
            self._tags = batch.tags_after(self._tags)
            self._run.log({"about": trackio.Markdown(table(self._tags))}, step=self._step)

    def _begin(self, batch: Batch) -> None:
        import trackio

        config = {key: typed(value) for key, value in batch.params.items()}
        self._run = trackio.init(
            project=self.project,
            name=self._name,
            group=self._name.partition("/")[0],
            config={**config, **sources_of(batch)},
            resume="allow",
            embed=False,
            auto_log_gpu=None if self.measure else False,
            auto_log_cpu=None if self.measure else False,
        )
        if not batch.params:  # of a run that goes on, whose settings are there: these would replace them
            self._run.config = {}

    def close(self) -> None:
        """Have Trackio write what it has."""
        if self._run is not None:
            self._run.finish()
            self._run = None
