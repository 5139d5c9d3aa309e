"""Metrics of torchmetrics by name, such as `torchmetrics.F1Score(average='none')`: classes, labels and numbers are given to them as each takes them."""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from snugfit.core.batch import Batch, labels_of
from snugfit.core.losses import IGNORE_INDEX, logits_of
from snugfit.core.scalar_reads import is_fake
from snugfit.errors import MissingExtra, SettingError, nearest
from snugfit.kit.metric_directions import TORCHMETRICS
from snugfit.step.metrics.all_rows_metrics import check_numbers
from snugfit.strategies.base import Strategy
from snugfit.system.memory import is_out_of_memory
from snugfit.system.torchvision_operators import declare_torchvision_operators
from snugfit.system.user_objects import describe

_SETTING = "evaluate.metrics"


def name_of(metric: str) -> str:
    """Return the name under which a metric of torchmetrics is predicted: its class, with its settings.

    >>> name_of("torchmetrics.classification.BinaryF1Score"), name_of("torchmetrics.F1Score(average='none')")
    ('BinaryF1Score', 'F1Score(average=none)')
    """
    path, bracket, settings = metric.partition("(")
    return path.rpartition(".")[2] + bracket + settings.replace("'", "").replace('"', "")


def check_torch_metric(metric: str) -> None:
    """Refuse a metric that torchmetrics does not have, or that is not written as Python.

    Raises:
        MissingExtra: torchmetrics is not installed.
        SettingError: there is none of that name, its settings are no plain values, or it compares something else than predictions and labels.
    """
    _parsed(metric)


@dataclass(frozen=True)
class OfTorchmetrics:
    """A metric of torchmetrics by name.

    Args:
        classes: names of the classes or labels; a metric with a value for each is predicted by them, by numbers where they are not known.
    """

    metric: str
    classes: tuple[str, ...] = ()


class TorchMetric:
    """A metric of torchmetrics over the batches of an evaluation: it adds up its own state, which the ranks put together at the end."""

    def __init__(self, of: OfTorchmetrics) -> None:
        self._of, self._made = of, _parsed(of.metric)
        self._settings: dict[str, Any] | None = None
        self._metric: Any = None

    def update(self, outputs: Any, part: Batch) -> None:
        logits, labels = logits_of(outputs).detach(), labels_of(part.data).detach()
        if is_fake(logits):  # of a plan
            return
        settings, predicted, true = self._inputs(logits, labels)
        try:
            if self._metric is None:
                self._settings, self._metric = settings, self._new(settings).to(logits.device)
            if len(true):
                self._metric.update(predicted, true)
        except (TypeError, ValueError, RuntimeError) as error:
            if is_out_of_memory(error):
                raise
            raise self._failed(error) from error

    def compute(self, strategy: Strategy) -> float | dict[str, float]:
        """Return the value over the rows of all ranks; by the names of the classes where it has one for each."""
        settings = next((each for each in strategy.tell(self._settings) if each is not None), None)
        if settings is None:
            return math.nan
        # a rank that has had no row takes part in the exchange too
        metric = (self._metric or self._new(settings)).to("cpu")
        if strategy.world_size > 1:
            metric.distributed_available_fn = lambda: True
            metric.dist_sync_fn = lambda value, **_: _without_empty(strategy.tell(value))
        try:
            value = metric.compute()
        except (TypeError, ValueError, RuntimeError) as error:
            raise self._failed(error) from error
        if isinstance(value, Tensor) and value.numel() == 1:
            return float(value)
        if isinstance(value, Tensor) and value.ndim == 1:
            names = self._of.classes if len(self._of.classes) == len(value) else range(len(value))
            return {str(name): float(own) for name, own in zip(names, value, strict=True)}
        form = f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise SettingError(
            _SETTING,
            f"{self._of.metric} gives {form}, and a metric is one number, or one for each class",
            "Choose another; snugfit evaluate --page has the confusion of classes.",
        )

    def _new(self, settings: Mapping[str, Any]) -> Any:
        made, given = self._made
        return made(**{**settings, **given})

    def _inputs(self, logits: Tensor, labels: Tensor) -> tuple[dict[str, Any], Tensor, Tensor]:
        """Return settings that rows decide, and predictions and labels as the metric takes them: rows, tokens or pixels, those of -100 left out."""
        made, given = self._made
        if ".regression." in made.__module__:
            check_numbers(logits, labels)
            return {}, logits.reshape(labels.shape).float(), labels.float()
        takes = inspect.signature(
            made.__new__ if "task" in _parameters(made.__new__) else made.__init__
        ).parameters
        if labels.dtype.is_floating_point:
            if logits.shape != labels.shape or labels.ndim != 2:
                raise SettingError(
                    _SETTING,
                    f"{self._of.metric} is of classes or labels, and rows have numbers",
                    "Choose one of torchmetrics.regression.",
                )
            settings = {"task": "multilabel", "num_labels": labels.shape[1]}
            return _taken(settings, takes), logits.float().sigmoid(), labels.long()
        if logits.shape in (labels.shape, (*labels.shape, 1)):
            known = labels != IGNORE_INDEX
            return (
                _taken({"task": "binary"}, takes),
                logits.reshape(labels.shape)[known].float().sigmoid(),
                labels[known],
            )
        if logits.shape[:-1] != labels.shape:
            raise SettingError(
                _SETTING,
                f"{self._of.metric} needs a logit for each class, found outputs of shape {tuple(logits.shape)} for labels of shape {tuple(labels.shape)}",
                "Choose another metric, or give such outputs.",
            )
        known = labels != IGNORE_INDEX
        predicted, true = logits[known].float().softmax(dim=-1), labels[known].long()
        if given.get("task") == "binary" or made.__name__.startswith("Binary"):
            if predicted.shape[-1] != 2:
                raise SettingError(
                    _SETTING,
                    f"{self._of.metric} is of two classes, and there are {predicted.shape[-1]}",
                    "Leave out 'binary'.",
                )
            return _taken({"task": "binary"}, takes), predicted[:, 1], true
        return _taken({"task": "multiclass", "num_classes": predicted.shape[-1]}, takes), predicted, true

    def _failed(self, error: Exception) -> SettingError:
        return SettingError(
            _SETTING,
            f"{self._of.metric} failed: {describe(error)}",
            "Correct its settings, or choose another.",
        )


def _without_empty(states: list[Tensor]) -> list[Tensor]:
    """Return the states of ranks without those that have had no row, which have another shape."""
    return [each for each in states if each.numel()] or states


def _parameters(function: Any) -> Mapping[str, Any]:
    return inspect.signature(function).parameters


def _taken(settings: Mapping[str, Any], takes: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name in takes}


def _parsed(metric: str) -> tuple[Any, dict[str, Any]]:
    """Return the class of a metric and its settings.

    Raises:
        As `check_torch_metric`.
    """
    example = f"Write it as Python, such as {TORCHMETRICS}F1Score(average='macro')."
    try:
        node = ast.parse(metric, mode="eval").body
        call = node if isinstance(node, ast.Call) else ast.Call(node, [], [])
        if call.args or not isinstance(call.func, ast.Attribute):
            raise ValueError("settings have names")
        settings = {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
    except (SyntaxError, ValueError) as error:
        raise SettingError(_SETTING, f"{metric} cannot be read: {describe(error)}", example) from error
    return _class_of(metric, call.func.attr), settings


def _class_of(metric: str, name: str) -> Any:
    declare_torchvision_operators()  # torchmetrics imports torchvision where it is
    try:
        from torchmetrics import classification, regression
    except ImportError as error:
        raise MissingExtra("torchmetrics", "torchmetrics") from error
    kinds: dict[str, Any] = {
        each: made
        for module in (regression, classification)
        for each, made in vars(module).items()
        if inspect.isclass(made) and not each.startswith("_")
    }
    if name not in kinds:
        raise SettingError(
            _SETTING,
            f"torchmetrics has no '{name}' of classes, labels or numbers ({metric})",
            nearest(name, sorted(kinds)),
        )
    return kinds[name]
