"""TensorBoard as a tracker: a run's events as files that it reads, in the run's own folder."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from snugfit.errors import MissingExtra
from snugfit.tracking.backend import Batch, RunGone

NAME = "tensorboard"
"""Of the tracker, of its folder in a run's, and of the file that says how far it has got."""


class TensorBoardBackend:
    """Event files behind the follower: a metric is a scalar at its step, settings and tags are two texts.

    A batch that is sent twice draws the same points twice.

    Args:
        folder: of the event files.
    Raises:
        MissingExtra: TensorBoard is not installed.
    """

    def __init__(self, folder: Path) -> None:
        if missing := missing_tensorboard():
            raise missing
        self.folder = folder
        self._writer: Any = None
        self._tags: dict[str, str] = {}
        self._step = 0

    def open(self, run_id: str | None, name: str, start_ms: int) -> str:  # noqa: ARG002  # its name is its folder's
        """Return the name of the run, which is that of the folder."""
        if run_id is not None and not self.folder.is_dir():
            raise RunGone(run_id)
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(self.folder))
        return NAME

    def send(self, run_id: str, batch: Batch) -> None:  # noqa: ARG002  # there is one
        """Write a batch."""
        for metric in batch.metrics:
            self._step = metric.step
            self._writer.add_scalar(metric.name, metric.value, metric.step, walltime=metric.time_ms / 1000)
        sources = {f"data.{each.context}": f"{each.name} ({each.digest[:12]})" for each in batch.inputs}
        if batch.params:
            self._writer.add_text("settings", _table({**batch.params, **sources}), 0)
        if batch.tags or batch.untagged:
            self._tags = {
                key: value for key, value in self._tags.items() if key not in batch.untagged
            } | batch.tags
            self._writer.add_text("about", _table(self._tags), self._step)
        self._writer.flush()

    def close(self) -> None:
        """End the file."""
        if self._writer is not None:
            self._writer.close()


def missing_tensorboard() -> MissingExtra | None:
    """Return the error where TensorBoard is not installed; None where it is. Does not import it."""
    return None if importlib.util.find_spec(NAME) is not None else MissingExtra(NAME, NAME)


def _table(values: dict[str, str]) -> str:
    """Return names and values as a table in Markdown."""
    rows = [f"| {key} | {value.replace('|', '&#124;')} |" for key, value in sorted(values.items())]
    return "\n".join(["| | |", "|---|---|", *(row.replace("\n", " ") for row in rows)])
