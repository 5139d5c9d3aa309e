"""Metrics of an evaluation: each sees micro-batches, and tells its value over the rows of all ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from snugfit.core.batch import Batch, labels_of
from snugfit.core.loss_terms import Loss
from snugfit.core.losses import IGNORE_INDEX, logits_of, unwrapped
from snugfit.core.scalar_reads import read
from snugfit.core.technique import Technique
from snugfit.errors import SettingError, nearest
from snugfit.kit.language_models.token_scores import Classes, Seen
from snugfit.kit.losses.auxiliary_loss import auxiliary_loss, main_loss
from snugfit.kit.losses.preference_losses import DESIRABLE, REWARDS, reward_sums
from snugfit.kit.metric_directions import is_of_torchmetrics, name_and_direction
from snugfit.step.metrics.all_rows_metrics import OF_ALL_ROWS, Collected, OverAllRows, check_numbers
from snugfit.step.metrics.byte_perplexity import BytePerplexity, PerByte
from snugfit.step.metrics.label_metrics import OF_LABEL_SETS, macro_f1_of
from snugfit.step.metrics.quantile_metrics import OF_QUANTILES, MeanOverSteps
from snugfit.step.metrics.retrieval_metrics import OF_EMBEDDINGS
from snugfit.step.metrics.text_metrics import OfWrittenTexts, TextScore
from snugfit.step.metrics.torch_metrics import (
    OfTorchmetrics,
    TorchMetric,
    check_torch_metric,
    name_of,
)
from snugfit.strategies.base import Strategy
from snugfit.system.user_objects import is_python_path, load_object

RowMetric = Callable[[Any, Any], Any]
"""A user's metric: `(outputs, data) -> one value a row`, whose mean is reported, or one of all rows that `over_all_rows` has marked."""


class Metric(Protocol):
    """A metric that adds up over the batches of an evaluation; one that looks at less than whole outputs says so by its attribute `seen`."""

    def update(self, outputs: Any, part: Batch) -> None:
        """Add the rows of a micro-batch, or fail and have added none: where memory ran out they come again, fewer at a time."""
        ...

    def compute(self, strategy: Strategy) -> float | dict[str, float]:
        """Return the value over the rows of all ranks, or one for each class by its name."""
        ...


@dataclass
class _RowMean:
    """The mean of a user's row metric."""

    function: RowMetric
    values: list[Tensor] = field(default_factory=list)

    @property
    def seen(self) -> Seen:
        """Return what the function says that it looks at, if it does."""
        seen = getattr(self.function, "seen", None)
        return seen if isinstance(seen, Seen) else Seen.OUTPUTS

    def update(self, outputs: Any, part: Batch) -> None:
        values = self.function(outputs, part.data)
        if not isinstance(values, Tensor) or values.shape != (part.rows,):
            form = f"shape {tuple(values.shape)}" if isinstance(values, Tensor) else type(values).__name__
            raise SettingError(
                "evaluate.metrics",
                f"{getattr(self.function, '__name__', 'a metric')} returned {form} for {part.rows} rows",
                "Return one value a row, shape (rows,): Snugfit takes the mean over all rows. Mark what is no mean with "
                "sf.over_all_rows.",
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

    seen: ClassVar[Seen] = Seen.CLASSES

    def __init__(self, value: Callable[[Tensor, Tensor, Tensor], float]) -> None:
        self._value = value
        self._counts: Tensor | None = None

    def update(self, outputs: Any, part: Batch) -> None:
        labels = labels_of(part.data)
        if labels.dtype.is_floating_point:
            raise SettingError(
                "evaluate.metrics",
                "metrics of classes need integer labels",
                "Use mse or mae; micro_f1 for any number of labels a row; for soft labels a metric of your own.",
            )
        if not isinstance(outputs, Classes):
            logits = logits_of(outputs)
            outputs = Classes(logits.argmax(dim=-1), logits.shape[-1])
        likeliest, classes = outputs.likeliest, outputs.count
        if likeliest.shape != labels.shape or classes < 2:
            raise SettingError(
                "evaluate.metrics",
                "metrics of classes need a logit for each of two or more classes, found outputs of shape "
                f"{(*likeliest.shape, classes)} for labels of shape {tuple(labels.shape)}",
                "Choose other metrics, or give such logits.",
            )
        counts = labels != IGNORE_INDEX
        predicted, true = likeliest[counts], labels[counts].long()
        highest = read(true.max(), assume=0) if true.numel() else 0
        if highest >= classes:  # before they are counted, in a table of as many entries
            raise SettingError(
                "evaluate.metrics",
                f"metrics of classes found the label {highest}, and the model has {classes} classes",
                "Correct the labels, give the model more outputs, or choose metrics of the task.",
            )
        tallies = [
            torch.bincount(each, minlength=classes) for each in (true[predicted == true], predicted, true)
        ]
        stacked = torch.stack(tallies)
        self._counts = stacked if self._counts is None else self._counts + stacked

    def compute(self, strategy: Strategy) -> float:
        # a rank that has had no row takes part in the exchange too
        own = [] if self._counts is None else read(self._counts, assume=[[0], [0], [0]])
        totals = sum(torch.tensor(counts, dtype=torch.float64) for counts in strategy.tell(own) if counts)
        return math.nan if isinstance(totals, int) else self._value(*totals.unbind())


def _accuracy(right: Tensor, _predicted: Tensor, true: Tensor) -> float:
    return float(right.sum() / true.sum())


def _macro_precision(right: Tensor, predicted: Tensor, true: Tensor) -> float:
    """Return the mean of right / predicted over the same classes; 0 for one that is never predicted."""
    there = predicted + true > 0
    return float((right[there] / predicted[there].clamp(min=1)).mean())


def _macro_recall(right: Tensor, predicted: Tensor, true: Tensor) -> float:
    """Return the mean of right / true over the same classes; 0 for one that is never true."""
    return _macro_precision(right, true, predicted)


def _mean_iou(right: Tensor, predicted: Tensor, true: Tensor) -> float:
    """Return the mean of right / (predicted or true) over the classes that are predicted or true at all."""
    either = predicted + true - right
    there = either > 0
    return float((right[there] / either[there]).mean())


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


def _differences(outputs: Any, part: Batch) -> tuple[Tensor, Tensor]:
    """Return predictions less labels, and the labels, in float32."""
    predictions, labels = logits_of(outputs), labels_of(part.data).float()
    check_numbers(predictions, labels)
    return (predictions.reshape(labels.shape).float() - labels).detach(), labels


class _Rewards:
    """A metric of the rewards that a loss of preferences implies: of good and of bad answers, whether they come in pairs or one by one.

    Args:
        value: of the mean reward of good answers, that of bad ones, and the share of rows that are told apart.
    """

    def __init__(self, value: Callable[[float, float, float], float]) -> None:
        self._value = value
        self._sums: list[Tensor] = []

    def update(self, outputs: Any, part: Batch) -> None:
        rewards = outputs.get(REWARDS) if isinstance(outputs, Mapping) else None
        if rewards is None:
            raise SettingError(
                "evaluate.metrics",
                "metrics of rewards need the outputs of a loss of preferences",
                "Use them with task: preference.",
            )
        self._sums.append(reward_sums(rewards, part.data.get(DESIRABLE)))

    def compute(self, strategy: Strategy) -> float:
        # a rank that has had no row takes part in the exchange too
        own = read(torch.stack(self._sums), assume=[[0.0] * 6] * len(self._sums)) if self._sums else []
        sums = [
            sum(column) for column in zip(*(row for rows in strategy.tell(own) for row in rows), strict=True)
        ]
        means = [
            total / count if count else math.nan for total, count in zip(sums[::2], sums[1::2], strict=True)
        ]
        return self._value(*means) if means else math.nan


# A few lines each: torchmetrics, whose others go by their names, imports transformers, scipy and pandas, which takes seconds.
METRICS: Mapping[str, Callable[[], Metric]] = {
    "accuracy": lambda: _ByClass(_accuracy),
    "macro_f1": lambda: _ByClass(macro_f1_of),
    "macro_precision": lambda: _ByClass(_macro_precision),
    "macro_recall": lambda: _ByClass(_macro_recall),
    "mean_iou": lambda: _ByClass(_mean_iou),
    "main_loss": lambda: MeanOverSteps(main_loss),
    "auxiliary_loss": lambda: MeanOverSteps(auxiliary_loss),
    "mse": lambda: _ErrorMean(torch.square),
    "rmse": lambda: _ErrorMean(torch.square, math.sqrt),
    "mae": lambda: _ErrorMean(torch.abs),
    "reward_accuracy": lambda: _Rewards(lambda _good, _bad, right: right),
    "reward_margin": lambda: _Rewards(lambda good, bad, _right: good - bad),
    "reward_chosen": lambda: _Rewards(lambda good, _bad, _right: good),
    "reward_rejected": lambda: _Rewards(lambda _good, bad, _right: bad),
    **{
        name: partial(Collected, function)
        for name, function in {**OF_ALL_ROWS, **OF_LABEL_SETS, **OF_EMBEDDINGS}.items()
    },
    **OF_QUANTILES,
}


OF_TASKS = {
    **dict.fromkeys(("entity_f1", "entity_precision", "entity_recall"), "spans of tagged words"),
    **dict.fromkeys(("chrf", "rouge_l", "bleu"), "written texts"),
    "perplexity_per_byte": "texts that a language model goes on with",
}
"""Metrics that a task makes, as they are of more than logits and labels, and what they are of: `Material.metrics` has them."""


AnyMetric = str | RowMetric | OfTorchmetrics


def made_metrics(
    metrics: Mapping[str, AnyMetric], of_task: Mapping[str, RowMetric], classes: Iterable[str] = ()
) -> dict[str, AnyMetric]:
    """Return metrics with those in place that a task makes, of its classes.

    Args:
        classes: their names.
    Raises:
        SettingError: one is of another task.
    """
    for metric in metrics.values():
        if metric in OF_TASKS and metric not in of_task:
            raise SettingError(
                "evaluate.metrics",
                f"{metric} is of {OF_TASKS[str(metric)]}, which this task does not have",
                "Choose other metrics.",
            )
    made: dict[str, AnyMetric] = {}
    for name, metric in metrics.items():
        if not isinstance(metric, str):
            made[name] = metric
        elif is_of_torchmetrics(metric):
            made[name] = OfTorchmetrics(metric, tuple(classes))
        else:
            made[name] = of_task.get(metric, metric)
    return made


def metric_name(metric: str) -> str:
    """Return the name of a recipe's metric: of one of the user's own that of its function.

    >>> metric_name("accuracy"), metric_name("my_metrics:f2"), metric_name("torchmetrics.CohenKappa")
    ('accuracy', 'f2', 'CohenKappa')
    """
    if is_of_torchmetrics(metric):
        return name_of(metric)
    return metric.rpartition(":")[2]


def metrics_in(listed: str) -> tuple[str, ...]:
    """Return the metrics of a list in one text; a comma within brackets or quotes is one of a metric's settings.

    >>> metrics_in("accuracy, torchmetrics.FBetaScore(beta=2.0, average='macro'), my_metrics:f2")
    ('accuracy', "torchmetrics.FBetaScore(beta=2.0, average='macro')", 'my_metrics:f2')
    >>> metrics_in("torchmetrics.CohenKappa(thresholds=(0.1, (0.5), 0.9)),mae,")
    ('torchmetrics.CohenKappa(thresholds=(0.1, (0.5), 0.9))', 'mae')
    """
    names, depth, quote = [""], 0, ""
    for each in listed:
        if quote:
            quote = "" if each == quote else quote
        elif each in "'\"":
            quote = each
        else:
            depth += (each in "([{") - (each in ")]}")
        if each == "," and not depth and not quote:
            names.append("")
        else:
            names[-1] += each
    return tuple(name.strip() for name in names if name.strip())


def check_metrics(names: Iterable[str]) -> None:
    """Refuse unknown metrics before anything is trained.

    Raises:
        SettingError: an unknown one; the nearest known name is given.
    """
    known = ["perplexity", *METRICS, *OF_TASKS]
    for name in names:
        if is_of_torchmetrics(name):
            check_torch_metric(name)
        elif name not in known:
            raise SettingError("evaluate.metrics", f"no metric '{name}'", nearest(name, known))


_NO_CROSS_ENTROPY = {
    "binary_cross_entropy": ("that of each label on its own", "micro_f1"),
    "mse": ("mse", "mae"),
    "pinball": ("pinball", "mase"),
}
"""What a loss is that is no cross-entropy, and the metric to use; one that is an object says so by its `no_cross_entropy`."""


def check_fit(metrics: Iterable[AnyMetric], loss: str | Loss) -> None:
    """Refuse metrics that would give a number without a meaning.

    Raises:
        SettingError: names the metric and the loss.
    """
    other = (
        _NO_CROSS_ENTROPY.get(loss)
        if isinstance(loss, str)
        else getattr(unwrapped(loss), "no_cross_entropy", None)
    )
    for metric in metrics:
        if loss == "causal_lm" and isinstance(metric, str) and metric not in ("perplexity", *OF_TASKS):
            raise SettingError(
                "evaluate.metrics",
                f"{metric} compares each output with the label at its place, and causal_lm predicts the next one",
                "Use perplexity, or a metric of your own.",
            )
        if metric == "perplexity" and other is not None:
            raise SettingError(
                "evaluate.metrics",
                f"perplexity is of a cross-entropy, and the loss is {other[0]}",
                f"Use {other[1]}.",
            )


def named_metrics(
    names: Iterable[str], setting: str, folder: Path | None = None
) -> dict[str, str | RowMetric]:
    """Return metrics by their names; those of the user's own, as `package.module:function`, are imported.

    Args:
        setting: the full name of the setting, for the error.
        folder: where modules are looked for first.
    Raises:
        SettingError: one cannot be imported.
    """
    return {
        metric_name(name): load_object(name, setting=setting, folder=folder) if is_python_path(name) else name
        for name in names
    }


def make_metric(metric: AnyMetric) -> Metric:
    """Return a metric by its name, or of a user's function.

    Raises:
        As `check_metrics`.
    """
    if isinstance(metric, str) and is_of_torchmetrics(metric):
        metric = OfTorchmetrics(metric)
    if isinstance(metric, OfTorchmetrics):
        return TorchMetric(metric)
    if isinstance(metric, OverAllRows):
        return Collected(metric, metric.reduced)
    if isinstance(metric, OfWrittenTexts):
        return TextScore(metric)
    if isinstance(metric, PerByte):
        return BytePerplexity(metric)
    if callable(metric):
        return _RowMean(metric)
    check_metrics([metric])
    return METRICS[metric]()


def seen_by(metrics: Iterable[Metric | str]) -> Seen:
    """Return what metrics look at of a model's outputs, made ones or by the names that a recipe has; perplexities look at nothing."""
    return max((_seen_by(metric) for metric in metrics), default=Seen.NOTHING)


def _seen_by(metric: Metric | str) -> Seen:
    if isinstance(metric, str):
        if metric in ("perplexity", "perplexity_per_byte"):
            return Seen.NOTHING
        return _seen_by(METRICS[metric]()) if metric in METRICS else Seen.OUTPUTS
    seen: Seen = getattr(metric, "seen", Seen.OUTPUTS)
    return seen


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
    names = ["loss", *map(metric_name, known)]
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
    names = ["loss", *map(metric_name, known)]
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
