"""The result of a run, and its model ready for rows: each gives the other, as a model is asked for the run that it comes from."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from snugfit.errors import ModelError, RunFolderError
from snugfit.report.story import history_rows
from snugfit.results.shown import Shown
from snugfit.units import counted, format_bytes, format_seconds

if TYPE_CHECKING:
    from torch import nn

    from snugfit.data.files.file_rows import MapStyle
    from snugfit.deliver.predictor import Predictor
    from snugfit.report.story import Story
    from snugfit.run.evaluation import Evaluation
    from snugfit.run.events import Display
    from snugfit.step.metrics.metric import RowMetric


class FinishedRun(Protocol):
    """A run that is over, as its result asks it."""

    @property
    def of_stream(self) -> bool:
        """True of a run on a stream, which has no epochs."""
        ...

    @property
    def trained(self) -> TrainedModel:
        """The best model as it was scored."""
        ...

    def story(self) -> Story:
        """Return the run, put in order."""
        ...


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
    afterwards: FinishedRun | None = field(default=None, compare=False)

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

    def _afterwards(self) -> FinishedRun:
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


@dataclass(frozen=True, repr=False)
class TrainedModel:
    """A model as it was scored.

    Args:
        predictor: uses it as its task does.
        run: the folder of the run that it comes from; None for one of the registry, of a folder by itself, or of no folder.
        lacking: functions by which the run made batches and called the model, and which nobody has given.
    """

    predictor: Predictor
    run: Path | None = None
    lacking: tuple[str, ...] = ()

    @property
    def model(self) -> nn.Module:
        """The plain module, in eval mode: averaged or merged where the run did that."""
        return self.predictor.model

    @property
    def processing(self) -> Processing:
        """The way of rows into the model."""
        return Processing(self.predictor)

    @property
    def about(self) -> Mapping[str, Any]:
        """The data saved with it: task, metrics, update, weights, numerics and labels."""
        return self.predictor.meta

    def predict(self, rows: Sequence[Any], *, top: int = 1, proba: bool = False) -> list[dict[str, Any]]:
        """Return a prediction for each row, in order, under the numerics of the training.

        Args:
            rows: mappings with the columns of the training rows, or a data frame of pandas with them; for a model of one's own, examples as its data set gives them, with or
                without labels.
        Returns:
            Of a classifier `prediction` and `probability`; of a model of one's own `output` too, what it put out for the row.
        Raises:
            DataError: the rows cannot be used.
            ModelError: the run had functions of its own, which were not given.
        """
        self._require_functions()
        return self.predictor.in_detail(top, proba).predict(rows)

    def evaluate(
        self,
        data: Any,
        metrics: Sequence[str] | Mapping[str, str | RowMetric] = (),
        *,
        bad_rows: str = "fail",
    ) -> Evaluation:
        """Return the loss and the metrics of the model on labelled rows; in a notebook with each class, calibration and the worst rows.

        Args:
            data: a file, a data frame of pandas, or mappings, with the columns of the training rows; for a model of one's own, examples as
                its data set gives them.
            metrics: names of built-in ones or `package.module:function`, or functions of one's own by name, as of `sf.train`; those of the
                task by default.
            bad_rows: "fail" or "skip", of rows that cannot be used.
        Raises:
            DataError: the rows cannot be used; a label not seen in training is a fault of its row.
            ModelError: the model was trained with a loss of one's own, which is not kept with it, or with functions that were not given.
        """
        self._require_functions()
        from snugfit.deliver.predict import evaluate_rows
        from snugfit.run.evaluation import Evaluation

        scores = evaluate_rows(
            self.predictor,
            data,
            (metrics,) if isinstance(metrics, str) else metrics,
            bad_rows=bad_rows,
        )
        name = os.fspath(data) if isinstance(data, (str, os.PathLike)) else "the data"
        fields = ("metrics", "rows", "details", "skipped", "baseline", "warnings")
        return Evaluation(
            str(self.run or self.predictor.source),
            name,
            **{key: scores[key] for key in fields if key in scores},
        )

    def _require_functions(self) -> None:
        if not self.lacking:
            return
        names = " and ".join(self.lacking)
        given = ", ".join(f"{name}=…" for name in self.lacking)
        raise ModelError(
            self.predictor.source,
            f"was trained with {names} of your own, and would be given other inputs without",
            f"Give what sf.train was given: sf.load(…, {given}).",
        )

    def export(
        self,
        to: str,
        output: str | os.PathLike[str],
        *,
        numbers: str | None = None,
        quantize: str | None = None,
        rows: str | Sequence[Mapping[str, Any]] | None = None,
    ) -> dict[str, Any]:
        """Write the model in the form that other libraries load, once they give again what was scored.

        Args:
            to: hf, adapter, gguf, onnx, torch-export or state-dict.
            output: the folder to make, with the model card.
            numbers: format of the weights: fp32 or bf16 of hf and state-dict; f16, bf16 or q8_0 of gguf.
            quantize: for hf: nf4 or int8, quantised anew after adapters were merged.
            rows: to compare on: a file, or rows themselves; those of the run by default.
        Returns:
            Where it lies, its files with their sizes, and what the comparisons gave.
        Raises:
            MissingExtra: a package that it needs is not installed.
            ModelError: the format does not hold this model, or what was read back is not what was scored; nothing is delivered.
            RunFolderError: the output holds something, or cannot be written.
        """
        from snugfit.deliver.export.export_model import check_request, export_model
        from snugfit.deliver.export.exported_model import subject_of
        from snugfit.models.bundle import META
        from snugfit.run.train_settings import by_keywords

        with by_keywords({f"--{name}": name for name in ("to", "output", "numbers", "quantize", "rows")}):
            check_request(to, Path(output), numbers, quantize)
            folder = Path(self.predictor.source)
            subject = subject_of(self.predictor, folder if (folder / META).is_file() else None)
            return export_model(subject, to, Path(output), numbers=numbers, quantize=quantize, rows=rows)

    def resume(self, display: Display | Literal["auto"] | None = "auto") -> RunResult:
        """Go on with the run of a recipe from its newest checkpoint.

        Raises:
            RunFolderError: it comes from no run, or from one that was made in Python, which goes on there.
        """
        from snugfit.run.events import displayed
        from snugfit.run.from_recipe import resume_run

        if self.run is None:
            raise RunFolderError(
                "resume", "the model comes from no run's folder", "Load the run: <output>/<name>/<id>."
            )
        with displayed(display) as shown:
            return resume_run(self.run, display=shown)

    def __repr__(self) -> str:
        about = self.about
        metrics = about.get("metrics") or {}
        scores = ", ".join(
            f"{name} {value:.4g}" for name, value in metrics.items() if isinstance(value, float)
        )
        where = "" if self.run is None else f" of {self.run}"
        at = f" at update {about['update']:,}" if "update" in about else ""
        return f"TrainedModel: {type(self.model).__name__} for {about.get('task')}{where}{at}{f' ({scores})' if scores else ''}"


@dataclass(frozen=True, repr=False)
class Processing:
    """The way of a row into a model."""

    _predictor: Predictor

    @property
    def tokenizer(self) -> Any:
        """The tokenizer of transformers; None where the task has none."""
        return self._predictor.tokenizer

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the classes, in the order of the logits; none where a prediction is something else."""
        return self._predictor.inference.classes

    def encode(self, rows: Sequence[Any]) -> MapStyle:
        """Return examples of the model, one of each row."""
        return self._predictor.inference.encode(rows)

    def collate(self, examples: Sequence[Any]) -> Any:
        """Return a batch of examples."""
        return self._predictor.inference.collate(list(examples))

    def __repr__(self) -> str:
        tokenizer = "no tokenizer" if self.tokenizer is None else type(self.tokenizer).__name__
        return f"Processing: {tokenizer}, {len(self.labels)} labels"
