"""TensorBoard as a tracker: a run's events as files that it reads, in the run's own folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from snugfit.tracking.backend import Batch, Histogram, Picture, RunGone, sources_of, table

NAME = "tensorboard"
"""Of the tracker, of its folder in a run's, and of the file that says how far it has got."""


class TensorBoardBackend:
    """Event files behind the follower: a metric is a scalar at its step, as are pictures and histograms; settings and tags are two texts.

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
        for picture in batch.pictures:
            self._picture(picture)
        for histogram in batch.histograms:
            self._histogram(histogram)
        self._writer.flush()

    def _picture(self, picture: Picture) -> None:
        import numpy
        from PIL import Image

        path = self.folder.parent / picture.path
        if not path.is_file():  # its owner has removed it since: the rest is to arrive
            return
        with Image.open(path) as file:
            pixels = numpy.asarray(file.convert("RGB"))
        self._writer.add_image(
            picture.name, pixels, picture.step, walltime=picture.time_ms / 1000, dataformats="HWC"
        )

    def _histogram(self, histogram: Histogram) -> None:
        import numpy

        edges, counts = numpy.asarray(histogram.edges), numpy.asarray(histogram.counts)
        values = (edges[1:] + edges[:-1]) / 2  # which of a part's were is not known
        self._writer.add_histogram_raw(
            histogram.name,
            min=histogram.low,
            max=histogram.high,
            num=int(counts.sum()),
            sum=float((values * counts).sum()),
            sum_squares=float((values**2 * counts).sum()),
            bucket_limits=edges[1:].tolist(),
            bucket_counts=counts.tolist(),
            global_step=histogram.step,
            walltime=histogram.time_ms / 1000,
        )

    def close(self) -> None:
        """End the file."""
        if self._writer is not None:
            self._writer.close()
