"""TensorBoard as a tracker: a run's events as files that it reads, in the run's own folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from snugfit.tracking.backend import Batch, RunGone, sources_of, table

NAME = "tensorboard"
"""Of the tracker, of its folder in a run's, and of the file that says how far it has got."""


class TensorBoardBackend:
    """Event files behind the follower: a metric is a scalar at its step, settings and tags are two texts.

    A batch that is sent twice draws the same points twice.

    Args:
        folder: of the event files.
    """

    def __init__(self, folder: Path) -> None:
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
        if batch.params:
            self._writer.add_text("settings", table({**batch.params, **sources_of(batch)}), 0)
        if batch.tags or batch.untagged:
            self._tags = batch.tags_after(self._tags)
            self._writer.add_text("about", table(self._tags), self._step)
        self._writer.flush()

    def close(self) -> None:
        """End the file."""
        if self._writer is not None:
            self._writer.close()
