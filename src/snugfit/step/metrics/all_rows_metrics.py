"""Metrics that are no mean of rows: each needs all predictions at once, such as the area under a ROC curve."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from snugfit.core.batch import Batch, labels_of
from snugfit.core.losses import IGNORE_INDEX, logits_of
from snugfit.core.scalar_reads import is_fake
from snugfit.errors import SettingError
from snugfit.strategies.base import Strategy
from snugfit.system.user_objects import describe

OfAllRows = Callable[[Tensor, Tensor], Any]
"""A metric of all predictions: `(logits, labels) -> number`."""


@dataclass(frozen=True)
class OverAllRows:
    """A metric of all rows: one of the user's own that `over_all_rows` has marked, or one that a task makes.

    Args:
        reduced: what is kept of the logits of a batch, of the same rows; all of them by default.
    """

    function: OfAllRows
    reduced: Callable[[Tensor], Tensor] = lambda logits: logits

    def __call__(self, logits: Tensor, labels: Tensor) -> Any:
        return self.function(logits, labels)


def over_all_rows(function: OfAllRows) -> OverAllRows:
    """Mark a metric as one of all predictions at once, where the mean of a value a row is not what is asked for.

    Such as this one, in a training by ``sf.train(..., metrics={"f2": f2}, best="max:f2")``::

        @sf.over_all_rows
        def f2(logits, labels):
            return sklearn.metrics.fbeta_score(labels, logits.argmax(dim=1), beta=2)

    Args:
        function: `(logits, labels) -> number`, of all rows of all ranks in no certain order, each row once, on the host and in
            float32 at least. Rows of fewer tokens than the longest are filled up, logits with 0 and labels with -100.
    """
    return OverAllRows(function)


@dataclass
class Collected:
    """The predictions and labels of an evaluation, and the metric of all of them.

    They are kept on the host: those of a whole evaluation may be more than a device has room for.
    """

    function: OfAllRows
    reduced: Callable[[Tensor], Tensor] = lambda logits: logits
    logits: list[Tensor] = field(default_factory=list)
    labels: list[Tensor] = field(default_factory=list)

    def update(self, outputs: Any, part: Batch) -> None:
        logits = self.reduced(logits_of(outputs).detach())
        on_host = _on_host(logits.to(torch.promote_types(logits.dtype, torch.float32)))
        self.labels.append(_on_host(labels_of(part.data).detach()))  # what may fail comes before what is kept
        self.logits.append(on_host)

    def compute(self, strategy: Strategy) -> float:
        # a rank that has had no row takes part in the exchange too
        fake = any(map(is_fake, self.logits))
        of_ranks = strategy.tell(
            ([], []) if fake else (_rows(self.logits, 0), _rows(self.labels, IGNORE_INDEX))
        )
        logits = _rows([rows for rows, _ in of_ranks if len(rows)], 0)
        labels = _rows([rows for _, rows in of_ranks if len(rows)], IGNORE_INDEX)
        if not len(logits):
            return math.nan
        name = getattr(getattr(self.function, "function", self.function), "__name__", "a metric")
        try:
            value = self.function(logits, labels)
        except SettingError:
            raise
        except Exception as error:
            raise SettingError(
                "evaluate.metrics", f"{name} failed: {describe(error)}", "Correct the function."
            ) from error
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError) as error:
            raise SettingError(
                "evaluate.metrics",
                f"{name} returned {type(value).__name__} for all rows",
                "Return one number of all of them.",
            ) from error


def _on_host(tensor: Tensor) -> Tensor:
    return tensor.to("cpu", copy=True)  # a view would keep the outputs


def _rows(parts: Sequence[Tensor], fill: float) -> Tensor:
    """Return the rows of all parts, each filled up to the longest."""
    if not parts:
        return torch.empty(0)
    shape = [max(sizes) for sizes in zip(*(part.shape[1:] for part in parts), strict=True)]
    return torch.cat([F.pad(part, _missing(part, shape), value=fill) for part in parts])


def _missing(part: Tensor, shape: Sequence[int]) -> list[int]:
    """Return what is missing behind each dimension but the first, as `pad` takes it: the last dimension first."""
    sizes = zip(reversed(part.shape[1:]), reversed(shape), strict=True)
    return [each for own, whole in sizes for each in (0, whole - own)]


def r2(predictions: Tensor, labels: Tensor) -> float:
    """1 less the squared errors over those of the labels' own mean: 0 for who always says that, 1 for no error."""
    predicted, true = _numbers(predictions, labels)
    spread = float((true - true.mean()).square().sum())
    return 1 - float((predicted - true).square().sum()) / spread if spread else math.nan


def pearson(predictions: Tensor, labels: Tensor) -> float:
    """Return the correlation of predictions and labels; NaN where either is always the same."""
    return _correlation(*_numbers(predictions, labels))


def spearman(predictions: Tensor, labels: Tensor) -> float:
    """Return the correlation of their ranks, ties at the mean of their ranks."""
    return _correlation(*map(_ranks, _numbers(predictions, labels)))


def auroc(logits: Tensor, labels: Tensor) -> float:
    """Return the area under the ROC curve, for three or more classes the mean of each against the rest.

    Args:
        logits: one for each class, or for two classes also a single one, of class 1.
        labels: the classes; those of -100 do not count. A class of which there is no label, or no other one, has no curve.
    Raises:
        SettingError: the labels are no classes, or do not fit the logits.
    Source: Hanley and McNeil 1982, doi:10.1148/radiology.143.1.7063747: the share of pairs in the right order, by ranks.
    """
    single = logits.shape == labels.shape or logits.shape == (*labels.shape, 1)
    if labels.dtype.is_floating_point and not (single and bool(((labels == 0) | (labels == 1)).all())):
        raise SettingError("evaluate.metrics", "auroc needs integer labels", "Use mse, mae or r2.")
    if not single and logits.shape[:-1] != labels.shape:
        raise SettingError(
            "evaluate.metrics",
            "auroc needs a logit for each class, found outputs of shape "
            f"{tuple(logits.shape)} for labels of shape {tuple(labels.shape)}",
            "Choose other metrics, or give such logits.",
        )
    counted = labels != IGNORE_INDEX
    true = labels[counted].long()
    if single:
        return _area(logits.reshape(labels.shape)[counted].double(), true == 1)
    scores = logits[counted].double().softmax(dim=-1)
    if scores.shape[-1] == 2:
        # not of probabilities, of which the surest are all 1
        return _area(logits[counted].double().diff(dim=-1).squeeze(-1), true == 1)
    areas = [_area(scores[:, place], true == place) for place in range(scores.shape[-1])]
    known = [area for area in areas if not math.isnan(area)]
    return sum(known) / len(known) if known else math.nan


def check_numbers(predictions: Tensor, labels: Tensor) -> None:
    """Refuse predictions that are not one number for each label.

    Raises:
        SettingError: says both shapes.
    """
    if predictions.shape[:1] != labels.shape[:1] or predictions.numel() != labels.numel():
        raise SettingError(
            "evaluate.metrics",
            f"metrics of numbers need an output for each label, found outputs of shape {tuple(predictions.shape)} for "
            f"labels of shape {tuple(labels.shape)}",
            "Choose metrics of classes, or give such outputs.",
        )


OF_ALL_ROWS: Mapping[str, OfAllRows] = {"r2": r2, "pearson": pearson, "spearman": spearman, "auroc": auroc}


def _numbers(predictions: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return both flat, in float64: sums of squares of large labels would cancel."""
    check_numbers(predictions, labels)
    return predictions.double().flatten(), labels.double().flatten()


def _correlation(left: Tensor, right: Tensor) -> float:
    left, right = left - left.mean(), right - right.mean()
    spread = float(left.norm() * right.norm())
    return float(left @ right) / spread if spread else math.nan


def _ranks(values: Tensor) -> Tensor:
    """Return the place of each value among all, from 1; equal ones have the mean of their places."""
    _, places, counts = values.unique(return_inverse=True, return_counts=True)
    means: Tensor = counts.cumsum(0) - (counts - 1) / 2
    return means.double()[places]


def _area(scores: Tensor, positive: Tensor) -> float:
    """Return the share of pairs of a positive and a negative in which the positive has the higher score; ties count half."""
    positives = int(positive.sum())
    pairs = positives * (len(scores) - positives)
    if not pairs:
        return math.nan
    return (float(_ranks(scores)[positive].sum()) - positives * (positives + 1) / 2) / pairs
