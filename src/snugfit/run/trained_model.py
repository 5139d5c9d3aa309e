"""A trained model with what its task needs to use it: of a run, a folder, or the registry."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from snugfit.errors import ModelError, RunFolderError

if TYPE_CHECKING:
    from torch import nn

    from snugfit.data.files.file_rows import MapStyle
    from snugfit.data.loader import Collate
    from snugfit.deliver.predictor import Predictor
    from snugfit.run.evaluation import Evaluation
    from snugfit.run.events import Display
    from snugfit.run.training.result import RunResult
    from snugfit.step.metrics.metric import RowMetric
    from snugfit.step.step import Forward

_BEST = "best"


@dataclasses.dataclass(frozen=True, repr=False)
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


@dataclasses.dataclass(frozen=True, repr=False)
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


def load(
    source: str | os.PathLike[str],
    *,
    model: nn.Module | None = None,
    collate: Collate | None = None,
    forward: Forward | None = None,
    device: str = "auto",
    uri: str | None = None,
    allow_code: bool = False,
) -> TrainedModel:
    """Load a trained model: of a run's folder its best, of a folder such as `best/`, or `models:/NAME@champion` of the registry.

    Args:
        model: takes the weights, where they are of a module that was made in Python and no function makes it again. It has the
            architecture that was delivered: without adapters where these were merged.
        collate, forward: as `sf.train` was given them, where it was: without them the model alone is there, and predicts nothing.
        uri: the registry's tracker; MLFLOW_TRACKING_URI by default, else the database beside the runs.
        allow_code: consent to run what the model names as `package.module:function`.
    Raises:
        CodeRefused: it names code, without consent.
        ModelError: it is damaged, or cannot be made again.
        RunFolderError, TrackingError: there is none.
    """
    from snugfit.deliver.model_registry import resolve_model
    from snugfit.deliver.predictor import load_predictor
    from snugfit.models.bundle import OWN_FUNCTIONS

    folder = resolve_model(source, uri=uri)
    predictor = load_predictor(folder, device, model=model, allow_code=allow_code)
    of_run = folder.name == _BEST and (folder.parent / "events.jsonl").exists()
    given = {"collate": collate, "forward": forward}
    lacking = tuple(name for name in predictor.meta.get(OWN_FUNCTIONS, ()) if given[name] is None)
    return TrainedModel(with_own(predictor, collate, forward), folder.parent if of_run else None, lacking)


def with_own(predictor: Predictor, collate: Collate | None, forward: Forward | None) -> Predictor:
    """Return a predictor that makes batches and calls the model in the user's own way, where there is one."""
    if collate is None and forward is None:
        return predictor
    if predictor.inference.run is not None:  # answers are generated, of other batches than those of training
        return predictor
    if collate is not None:
        predictor = dataclasses.replace(
            predictor, use=dataclasses.replace(predictor.inference, collate=collate)
        )
    return predictor if forward is None else dataclasses.replace(predictor, forward=forward)
