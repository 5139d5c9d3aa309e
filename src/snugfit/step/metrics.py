"""Metrics of an evaluation: each sees micro-batches, and tells its value over the rows of all ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from snugfit.core.batch import Batch, labels_of
from snugfit.core.losses import IGNORE_INDEX, Loss, logits_of
from snugfit.core.metric_directions import name_and_direction
from snugfit.core.scalar_reads import read
from snugfit.core.technique import Technique
from snugfit.errors import SettingError, nearest
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


class _ByClass:
    """A metric of the counts of each class, over the labels that are not ignored.

    Args:
        value: of three tensors of shape (classes,): right predictions, predictions, labels.
    """

    def __init__(self, value: Callable[[Tensor, Tensor, Tensor], float]) -> None:
        self._value = value
        self._counts: Tensor | None = None

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
        counts = labels != IGNORE_INDEX
        predicted, true = logits.argmax(dim=-1)[counts], labels[counts].long()
        classes = logits.shape[-1]
        tallies = [
            torch.bincount(each, minlength=classes) for each in (true[predicted == true], predicted, true)
        ]
        if tallies[-1].numel() > classes:
            raise SettingError(
                "evaluate.metrics",
                f"accuracy and macro_f1 found the label {tallies[-1].numel() - 1}, and the model has {classes} classes",
                "Correct the labels, or give the model more outputs.",
            )
        stacked = torch.stack(tallies)
        self._counts = stacked if self._counts is None else self._counts + stacked

    def compute(self, strategy: Strategy) -> float:
        # a rank that has had no row takes part in the exchange too
        own = [] if self._counts is None else read(self._counts, assume=[[0], [0], [0]])
        totals = sum(torch.tensor(counts, dtype=torch.float64) for counts in strategy.tell(own) if counts)
        return math.nan if isinstance(totals, int) else self._value(*totals.unbind())


def _accuracy(right: Tensor, _predicted: Tensor, true: Tensor) -> float:
    return float(right.sum() / true.sum())


def _macro_f1(right: Tensor, predicted: Tensor, true: Tensor) -> float:
    """Return the mean of 2 right / (predicted + true) over the classes that are predicted or true at all."""
    both = predicted + true
    there = both > 0
    return float((2 * right[there] / both[there]).mean())


class _ErrorMean:
    """The mean over all values of an error of predictions, shape of the labels.

    Args:
        of_mean: of the mean, where the metric is not the mean itself.
    """

    def __init__(
        self, error: Callable[[Tensor], Tensor], of_mean: Callable[[float], float] = lambda mean: mean
    ) -> None:
        self._error, self._of_mean = error, of_mean
        self._sums: list[Tensor] = []
        self._count = 0

    def update(self, outputs: Any, part: Batch) -> None:
        difference, labels = _differences(outputs, part)
        self._sums.append(self._error(difference).sum())
        self._count += labels.numel()

    def compute(self, strategy: Strategy) -> float:
        # in float64, which only the host has everywhere
        numbers = read(torch.stack(self._sums), assume=[0.0]) if self._sums else []
        totals = strategy.tell((sum(numbers), self._count))
        count = sum(each for _, each in totals)
        return self._of_mean(float(sum(total for total, _ in totals) / count)) if count else math.nan


class _R2:
    """1 less the squared errors over those of the labels' own mean: 0 for who always says that, 1 for no error."""

    def __init__(self) -> None:
        self._errors: list[Tensor] = []
        self._labels: list[Tensor] = []

    def update(self, outputs: Any, part: Batch) -> None:
        difference, labels = _differences(outputs, part)
        self._errors.append(difference.square().flatten())
        self._labels.append(labels.detach().flatten().clone())

    def compute(self, strategy: Strategy) -> float:
        own: list[list[float]] = [
            read(torch.cat(each), assume=[0.0] * sum(map(torch.numel, each))) if each else []
            for each in (self._errors, self._labels)
        ]
        # in float64 and around their mean: sums of squares of large labels would cancel
        errors, labels = (
            torch.tensor([value for each in strategy.tell(values) for value in each], dtype=torch.float64)
            for values in own
        )
        spread = float((labels - labels.mean()).square().sum()) if labels.numel() else 0.0
        return 1 - float(errors.sum()) / spread if spread else math.nan


def _differences(outputs: Any, part: Batch) -> tuple[Tensor, Tensor]:
    """Return predictions less labels, and the labels, in float32."""
    labels = labels_of(part.data).float()
    return (logits_of(outputs).reshape(labels.shape).float() - labels).detach(), labels


# Six sums of a few lines each: torchmetrics, which has them too, imports transformers, scipy and pandas, which takes seconds.
METRICS: Mapping[str, Callable[[], Metric]] = {
    "accuracy": lambda: _ByClass(_accuracy),
    "macro_f1": lambda: _ByClass(_macro_f1),
    "mse": lambda: _ErrorMean(torch.square),
    "rmse": lambda: _ErrorMean(torch.square, math.sqrt),
    "mae": lambda: _ErrorMean(torch.abs),
    "r2": _R2,
}


def check_metrics(names: Iterable[str]) -> None:
    """Refuse unknown metrics before anything is trained.

    Raises:
        SettingError: an unknown one; the nearest known name is given.
    """
    known = ["perplexity", *METRICS]
    for name in names:
        if name not in known:
            raise SettingError("evaluate.metrics", f"no metric '{name}'", nearest(name, known))


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
