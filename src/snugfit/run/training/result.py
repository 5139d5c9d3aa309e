"""The results of a run: its events, its best model, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from torch import nn

from snugfit.errors import RunFolderError
from snugfit.report.history import history_rows
from snugfit.results.shown import Shown
from snugfit.units import counted, format_bytes, format_seconds

if TYPE_CHECKING:
    from snugfit.run.afterwards import Afterwards
    from snugfit.run.evaluation import Evaluation
    from snugfit.run.trained_model import TrainedModel
    from snugfit.step.metrics.metric import RowMetric


class Emit(Protocol):
    """The receivers of a run's events: the spool and the screen."""

    def __call__(self, kind: str, /, **fields: Any) -> None: ...


class SaveBest(Protocol):
    """Puts a model and what describes it where the best one is; `trained` is the one it was exported from."""

    def __call__(
        self, model: nn.Module, description: Mapping[str, Any], /, *, trained: nn.Module
    ) -> None: ...


@dataclass(repr=False)
class RunResult(Shown):
    """The end of a run, and what became of it.

    `seconds` are those of all processes that have trained it, `examples_per_second` the speed of the last.
    `status` is finished, stopped (resumable) or failed; `went_back` are the windows, counted from 1, because
    of which it went back to a checkpoint; `advice` is what the evaluations say about its length: `verdict`
    (longer, shorter, stop or unknown), `epochs` and `reason`. `run_dir` is None where nothing was to be written.
    """

    run_dir: str | None
    status: str
    stop_reason: str | None
    resumable: bool
    updates: int
    epochs: float
    best: dict[str, Any] | None
    last: dict[str, Any]
    seconds: float
    examples_per_second: float
    peak_memory_bytes: int
    tracker_run_id: str | None = None
    went_back: list[int] = field(default_factory=list)
    advice: dict[str, Any] | None = None
    afterwards: Afterwards | None = field(default=None, compare=False)

    @property
    def trained(self) -> TrainedModel:
        """The best model as it was scored, with what its task needs to use it, as `sf.load` gives it.

        Raises:
            RunFolderError: there is none: the run has scored nothing, or another rank has written it.
        """
        return self._afterwards().trained

    @property
    def model(self) -> nn.Module:
        """The best model as it was scored: a plain module, in eval mode."""
        return self.trained.model

    def predict(self, rows: Sequence[Any]) -> list[dict[str, Any]]:
        """Return the best model's prediction for each row, as `TrainedModel.predict`."""
        return self.trained.predict(rows)

    def evaluate(
        self,
        data: Any,
        metrics: Sequence[str] | Mapping[str, str | RowMetric] = (),
        *,
        bad_rows: str = "fail",
    ) -> Evaluation:
        """Return the best model's scores on labelled rows, as `TrainedModel.evaluate`."""
        return self.trained.evaluate(data, metrics, bad_rows=bad_rows)

    @property
    def history(self) -> Any:
        """A row for each update with its numbers, and with `validation_…` where it was scored: a DataFrame, or a list of dicts without pandas.

        Raises:
            RunFolderError: the run's events cannot be read.
        """
        rows = history_rows(self._afterwards().story())
        if find_spec("pandas") is None:
            return rows
        import pandas

        return pandas.DataFrame(rows)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        values = asdict(replace(self, afterwards=None))
        del values["afterwards"]
        return values

    def summary_lines(self) -> list[str]:
        """Return how it ended, its best and its last scores, where it is, and what it can be asked."""
        of_stream = self.afterwards is not None and self.afterwards.of_stream
        epochs = "" if of_stream else f", {counted(float(self.epochs), 'epoch')}"
        head = f"RunResult: {self.status}, {counted(self.updates, 'update')}{epochs}, {format_seconds(self.seconds)}"
        if self.peak_memory_bytes:
            head += f", peak memory {format_bytes(self.peak_memory_bytes)}"
        lines = [head]
        if self.stop_reason:
            lines.append(f"  why     {self.stop_reason}")
        if self.best:
            lines.append(f"  best    {_scores(self.best['metrics'])} at update {self.best['update']:,}")
        if self.last.get("metrics"):
            lines.append(f"  last    {_scores(self.last['metrics'])}")
        if self.run_dir is not None:
            lines.append(f"  run     {self.run_dir}")
        return [*lines, "  then    .model, .predict(rows), .evaluate(data), .history"]

    def page(self) -> str | None:
        """Return the run's report; its curves where it has written none."""
        from snugfit.report.page import REPORT_NAME, render_curves

        if self.run_dir is None:
            return None if self.afterwards is None else render_curves(self.afterwards.story())
        path = Path(self.run_dir) / REPORT_NAME
        return path.read_text(encoding="utf-8") if path.is_file() else None

    def _afterwards(self) -> Afterwards:
        if self.afterwards is None:
            raise RunFolderError(
                "result",
                "the first process has the best model of this run",
                "Ask the result that it has, or load the run's folder: snugfit.load(run_dir).",
            )
        return self.afterwards


def _scores(metrics: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in metrics.items()
    )
