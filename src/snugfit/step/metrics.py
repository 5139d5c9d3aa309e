"""Metrics of an evaluation: each sees micro-batches, and tells its value over the rows of all ranks."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Protocol

import torch
from torch import Tensor

from snugfit.core.batch import Batch, labels_of
from snugfit.core.losses import IGNORE_INDEX, Loss, logits_of
from snugfit.core.metric_directions import name_and_direction
from snugfit.core.scalar_reads import read
from snugfit.core.technique import Technique
from snugfit.errors import MissingExtra, SettingError, nearest
from snugfit.strategies.base import Strategy

RowMetric = Callable[[Any, Any], Tensor]
"""A user's metric: `(outputs, data) -> one value a row`; its mean over the rows is reported."""


class Metric(Protocol):
    """A metric that adds up over the batches of an evaluation."""

    def update(self, outputs: Any, part: Batch) -> None: ...

    def compute(self, strategy: Strategy) -> float:
        """Return the value over the rows of all ranks."""
        ...


@dataclass
class _RowMean:
    """The mean of a user's row metric."""

    function: RowMetric
    values: list[Tensor] = field(default_factory=list)

    def update(self, outputs: Any, part: Batch) -> None:
        values = self.function(outputs, part.data)
        if not isinstance(values, Tensor) or values.shape != (part.rows,):
            form = f"shape {tuple(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
            raise SettingError(
                "evaluate.metrics",
                f"{getattr(self.function, '__name__', 'a metric')} returned {form} for {part.rows} rows",
                "Return one value a row, shape (rows,): Snugfit takes the mean over all rows.",
            )
        self.values.append(values.detach().clone())  # a view would keep the outputs

    def compute(self, strategy: Strategy) -> float:
        # in float64, which only the host has everywhere
        rows = sum(values.numel() for values in self.values)
        numbers = read(torch.cat(self.values), assume=[0.0] * rows) if rows else []
        totals = strategy.tell((sum(numbers), rows))
        return float(sum(total for total, _ in totals) / sum(rows for _, rows in totals))


class _Classification:
    """A torchmetrics classification metric over all labels that are not ignored."""

    def __init__(self, class_name: str, **settings: Any) -> None:
        self._class_name, self._settings = class_name, settings
        self._metric: Any = None
        self._classes = 0

    def update(self, outputs: Any, part: Batch) -> None:
        logits, labels = logits_of(outputs), labels_of(part.data)
        if labels.dtype.is_floating_point:
            raise SettingError(
                "evaluate.metrics",
                "accuracy and macro_f1 need integer labels",
                "Use mse or mae, or for soft labels a metric of your own.",
            )
        if logits.shape[:-1] != labels.shape or logits.shape[-1] < 2:
            raise SettingError(
                "evaluate.metrics",
                "accuracy and macro_f1 need a logit for each of two or more classes, found outputs of shape "
                f"{tuple(logits.shape)} for labels of shape {tuple(labels.shape)}",
                "Choose other metrics, or give such logits.",
            )
        self._ready(logits.shape[-1])
        self._metric.to(logits.device).update(logits.argmax(dim=-1).flatten(), labels.flatten())

    def compute(self, strategy: Strategy) -> float:
        # a rank that has had no row takes part in the exchange too
        self._ready(max(strategy.counts(self._classes)))
        return _over_ranks(self._metric)

    def _ready(self, classes: int) -> None:
        if self._metric is None:
            metric = getattr(import_module("torchmetrics.classification"), self._class_name)
            self._metric = metric(num_classes=classes, ignore_index=IGNORE_INDEX, **self._settings)
            self._classes = classes


class _Regression:
    def __init__(self, class_name: str) -> None:
        self._metric = getattr(import_module("torchmetrics.regression"), class_name)()

    def update(self, outputs: Any, part: Batch) -> None:
        labels = labels_of(part.data)
        prediction = logits_of(outputs).reshape(labels.shape).float()
        self._metric.to(labels.device).update(prediction, labels.float())

    def compute(self, _strategy: Strategy) -> float:
        return _over_ranks(self._metric)


def _over_ranks(metric: Any) -> float:
    """Return the value of a metric of torchmetrics, which adds up over ranks itself."""
    with warnings.catch_warnings():  # that this rank has had no row
        warnings.filterwarnings("ignore", message="The ``compute`` method of metric")
        return float(metric.compute())


METRICS: Mapping[str, Callable[[], Metric]] = {
    "accuracy": lambda: _Classification("MulticlassAccuracy", average="micro"),
    "macro_f1": lambda: _Classification("MulticlassF1Score", average="macro"),
    "mse": lambda: _Regression("MeanSquaredError"),
    "mae": lambda: _Regression("MeanAbsoluteError"),
}


def check_metrics(names: Iterable[str]) -> None:
    """Refuse unknown metrics before anything is trained.

    Raises:
        SettingError: an unknown one; the nearest known name is given.
        MissingExtra: it needs a package that is not installed.
    """
    known = ["perplexity", *METRICS]
    for name in names:
        if name not in known:
            raise SettingError("evaluate.metrics", f"no metric '{name}'", nearest(name, known))
        if name in METRICS and find_spec("torchmetrics") is None:  # to be said now, not after an epoch
            raise MissingExtra("torchmetrics", "metrics")


def check_fit(metrics: Iterable[str | RowMetric], loss: str | Loss) -> None:
    """Refuse metrics that would give a number without a meaning.

    Raises:
        SettingError: names the metric and the loss.
    """
    for metric in metrics:
        if loss == "causal_lm" and isinstance(metric, str) and metric != "perplexity":
            raise SettingError(
                "evaluate.metrics",
                f"{metric} compares each output with the label at its place, and causal_lm predicts the next one",
                "Use perplexity, or a metric of your own.",
            )
        if loss == "mse" and metric == "perplexity":
            raise SettingError(
                "evaluate.metrics", "perplexity is of a cross-entropy, and the loss is mse", "Use mae."
            )


def make_metric(metric: str | RowMetric) -> Metric:
    """Return a metric by its name, or of a user's function.

    Raises:
        As `check_metrics`.
    """
    if callable(metric):
        return _RowMean(metric)
    check_metrics([metric])
    return METRICS[metric]()


def perplexity(loss: float) -> float:
    """exp(loss), infinite where that overflows.

    >>> perplexity(0.0), perplexity(1e4)
    (1.0, inf)
    """
    return math.exp(loss) if loss < 700 else math.inf


def monitored(best: str, known: Iterable[str]) -> tuple[str, bool]:
    """Return the metric that decides which weights are best, and whether higher is better.

    >>> monitored("accuracy", ["accuracy"]), monitored("min:my_error", ["my_error"])
    (('accuracy', True), ('my_error', False))

    Raises:
        SettingError: the metric is not evaluated, or its direction is not known.
    """
    names = ["loss", *known]
    name = best.rpartition(":")[2]
    if name not in names:
        raise SettingError(
            "evaluate.best", f"'{name}' is not among the evaluated metrics", nearest(name, names)
        )
    return name_and_direction("evaluate.best", best)


def check_watched(techniques: Iterable[Technique], known: Iterable[str], validated: bool) -> None:
    """Refuse techniques that look at a metric which no evaluation has.

    Args:
        validated: whether there is data to evaluate on.
    Raises:
        SettingError: names the technique, its metric, and those that are evaluated.
    """
    names = ["loss", *known]
    for technique in techniques:
        name = technique.card.name
        for metric in technique.metrics():
            if not validated:
                raise SettingError(
                    name,
                    f"looks at '{metric}' of each evaluation, and there is no data to evaluate on",
                    f"Give data.validation, or remove '{name}'.",
                )
            if metric not in names:
                raise SettingError(
                    name,
                    f"looks at '{metric}', which is not among the evaluated metrics",
                    f"{nearest(metric, names)} Add it to evaluate.metrics, or choose another.",
                )
