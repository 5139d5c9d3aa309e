"""Predictions of several models, or of several views of each row, together: the mean of probabilities, or of numbers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import nn

from snugfit.core.batch import Batch
from snugfit.core.losses import over_batches
from snugfit.deliver.model_registry import resolve_model
from snugfit.errors import DataError, ModelError, RunFolderError, SettingError
from snugfit.results.run_folder import RunFolder
from snugfit.step.evaluate import Scored, evaluate
from snugfit.step.metrics.metric import check_metrics, made_metrics, named_metrics
from snugfit.tasks.common.classes import most_likely

if TYPE_CHECKING:
    from torch import Tensor

    from snugfit.data.files.file_rows import FileRows
    from snugfit.deliver.predictor import Predictor
    from snugfit.step.evaluate import RowObserver
    from snugfit.tasks.inference import Inference, Prediction

_FOLDS, _RESULT = "fold-*", "result.json"
"""The folders of a cross-validation's folds, and the result in each that has ended."""

_LEAST = 1e-12
"""The probability of a label from which its logit is finite."""


def bundles_of(source: str | os.PathLike[str], *, uri: str | None = None) -> list[Path]:
    """Return the folders of a source's bundles: of a cross-validation each fold's, of anything else its one.

    Raises:
        As `resolve_model`.
        RunFolderError: a cross-validation of which no fold has ended.
    """
    folder = Path(source)
    if not (folder / "cv.json").is_file():
        return [resolve_model(source, uri=uri)]
    bundles = []
    for result in sorted(folder.glob(f"{_FOLDS}/{_RESULT}")):
        run = Path(
            RunFolder(result.parent).read_json(_RESULT)["run_dir"]
        ).name  # the folder may have been moved
        bundles.append(resolve_model(result.parent / run))
    if not bundles:
        raise RunFolderError(
            folder,
            "is a cross-validation of which no fold has ended",
            f"Go on with it: snugfit cv --resume {folder}",
        )
    return bundles


FLIPS = "flips"
"""Two views of a picture: as it is, and mirrored."""

Views = int | str


def check_views(views: Views) -> None:
    """Refuse what no views of a row can be.

    Raises:
        SettingError
    """
    if views != FLIPS and (not isinstance(views, int) or views < 1):
        raise SettingError(
            "--views", f"got {views}", f"Give a positive number, or {FLIPS} for mirror images."
        )


@dataclass(frozen=True)
class Ensemble:
    """Models that predict together, of one task and for the same classes.

    Args:
        views: so many of each row, the row as it is and others drawn as in training; or "flips", the row as it is and mirrored.
    Raises:
        ModelError: they are not, or answer in a way that has no mean, or rows have no such views.
        SettingError: `views` is not positive.
    """

    predictors: Sequence[Predictor]
    views: Views = 1

    def __post_init__(self) -> None:
        first, *others = self.predictors
        self._check_views()
        use = first.inference
        numbers = use.columns == ("prediction",) and use.with_generation is None
        if not use.classes and not numbers:
            raise ModelError(
                first.source,
                f"is of the task '{first.meta['task']}', of whose predictions there is no mean",
                "Name one model.",
            )
        for other in others:
            if (other.meta["task"], other.inference.classes) != (first.meta["task"], first.inference.classes):
                raise ModelError(
                    other.source,
                    f"predicts something else than {first.source}",
                    "Name models of one task and the same classes.",
                )

    def _check_views(self) -> None:
        if self.views == FLIPS:
            one_sided = [each for each in self.predictors if each.inference.mirrored is None]
            if one_sided:
                raise ModelError(
                    one_sided[0].source,
                    f"is of the task '{one_sided[0].meta['task']}', whose predictions are not averaged over mirror images",
                    "Leave out --views flips; classes of pictures can be told of their mirror images.",
                )
            return
        check_views(self.views)
        undrawn = [each for each in self.predictors if each.inference.view is None]
        if self.views != 1 and undrawn:
            raise ModelError(
                undrawn[0].source,
                "was trained on rows as they are, so that there is one view of each",
                f"Leave out --views, or give --views {FLIPS}; data.augment and data.augment_audio draw changes in training.",
            )

    @cached_property
    def inference(self) -> Inference:
        """The use of the first of them."""
        return self.predictors[0].inference

    def outputs(self, data: str, *, labelled: bool, bad_rows: str) -> tuple[FileRows, Tensor]:
        """Return a file's rows with what is put out for them: logits of mean probabilities (rows, classes), or mean numbers (rows,).

        Raises:
            DataError: the data cannot be used, or some of the models can use other rows of them.
        """
        rows: FileRows | None = None
        total: Tensor | None = None
        for predictor in self.predictors:
            assert predictor.inference.read is not None
            own = predictor.inference.read(data, labelled=labelled, bad_rows=bad_rows)
            if rows is not None and own.lines != rows.lines:
                raise DataError(
                    data, "has rows that some of the models can use and others cannot", "Correct them."
                )
            rows = rows or own
            values = _values(predictor, own, self.views)
            total = values if total is None else total + values
        assert rows is not None and total is not None
        mean = total / len(self.predictors)
        if self.inference.any_number:
            return rows, mean.logit(eps=_LEAST)
        return rows, mean.log() if self.inference.classes else mean

    def decode(
        self, outputs: Tensor, rows: FileRows, *, top: int = 1, every: bool = False
    ) -> list[Prediction]:
        """Return the predictions of outputs; the further arguments are those of `tasks.classes.most_likely`."""
        if not self.inference.classes:
            return [{"prediction": number} for number in outputs.tolist()]
        if self.inference.any_number:
            return self.inference.decode(outputs, range(len(rows.rows)))
        return most_likely(self.inference.classes, outputs, range(len(rows.rows)), top=top, every=every)

    def scores(
        self, data: str, metrics: Sequence[str], *, bad_rows: str, observer: RowObserver | None = None
    ) -> tuple[FileRows, dict[str, float]]:
        """Return a file's rows, with loss and metrics of the predictions for them: those of the mean, not the mean of each one's.

        Args:
            observer: looks on while rows are scored.
        Raises:
            SettingError: there is no such metric.
        """
        named = made_metrics(
            named_metrics(metrics or self.inference.metrics, "metrics", Path.cwd()),
            self.inference.own_metrics,
            self.inference.classes,
        )
        check_metrics(each for each in named.values() if isinstance(each, str))
        rows, outputs = self.outputs(data, labelled=True, bad_rows=bad_rows)
        labels = torch.as_tensor([rows.examples[place]["labels"] for place in range(len(rows.rows))])
        assert self.inference.loss is not None
        mean = Scored(
            nn.Identity(), outputs.device, lambda batch: batch.data["mean"], over_batches(self.inference.loss)
        )
        return rows, evaluate(mean, [Batch.of({"mean": outputs, "labels": labels})], named, observer=observer)


def _values(predictor: Predictor, rows: FileRows, views: Views) -> Tensor:
    """Return the mean of what one of them predicts: probabilities (rows, classes), or numbers (rows,), in float64."""
    use = predictor.in_detail(proba=True) if predictor.inference.classes else predictor
    names = [f"probability of {name}" for name in predictor.inference.classes] or ["prediction"]
    drawn, mirrored = predictor.inference.view, predictor.inference.mirrored
    seen = [rows.examples]
    if views == FLIPS:
        assert mirrored is not None
        seen.append(mirrored(rows.examples))
    elif isinstance(views, int):
        seen += [drawn(rows.examples, number) for number in range(1, views) if drawn is not None]
    values = [
        torch.tensor(
            [[each[name] for name in names] for each in use.predict_examples(examples)], dtype=torch.float64
        )
        for examples in seen
    ]
    mean = torch.stack(values).mean(dim=0)
    return mean if predictor.inference.classes else mean.flatten()
