"""Metrics by name: which direction is better, and which are of one class or of torchmetrics."""

from __future__ import annotations

from collections.abc import Container

from snugfit.errors import SettingError

_HIGHER = (
    "accuracy",
    "micro_f1",
    "macro_f1",
    "exact_match",
    "mean_average_precision",
    "recall_at_1",
    "recall_at_10",
    "mrr",
    "mean_iou",
    "macro_precision",
    "macro_recall",
    "f1",
    "precision",
    "recall",
    "auroc",
    "r2",
    "pearson",
    "spearman",
    "reward_accuracy",
    "reward_margin",
    "reward_chosen",
    "entity_f1",
    "entity_precision",
    "entity_recall",
    "chrf",
    "rouge_l",
    "bleu",
)
_LOWER = (
    "loss",
    "perplexity",
    "perplexity_per_byte",
    "mse",
    "mae",
    "rmse",
    "pinball",
    "mase",
    "main_loss",
    "auxiliary_loss",
    "reward_rejected",
)


TORCHMETRICS = "torchmetrics."
"""Beginning of the names of its metrics."""

OF_CLASS = " of "
"""Between the name of a metric and that of a class: the value for that class, beside the mean of all."""


def is_of_class(name: str, names: Container[str]) -> bool:
    """Return whether a metric is of one class, beside that of all in `names`.

    >>> is_of_class("F1Score of cat", ["F1Score"]), is_of_class("part of speech", ["F1Score"])
    (True, False)
    """
    whole, between, _ = name.partition(OF_CLASS)
    return bool(between) and whole in names


def is_of_torchmetrics(metric: str) -> bool:
    """Return whether a metric is named as one of torchmetrics.

    >>> is_of_torchmetrics("torchmetrics.CohenKappa"), is_of_torchmetrics("accuracy")
    (True, False)
    """
    return metric.startswith(TORCHMETRICS)


def name_and_direction(setting: str, metric: str) -> tuple[str, bool]:
    """Return the name of `metric`, and whether higher is better.

    >>> name_and_direction("evaluate.best", "accuracy"), name_and_direction("evaluate.best", "min:my_error")
    (('accuracy', True), ('my_error', False))

    Args:
        setting: the full name of the setting, for the error.
        metric: a name that is known here, or any with `min:` or `max:` before it.
    Raises:
        SettingError: the direction is not known.
    """
    direction, _, name = metric.rpartition(":")
    if direction in ("min", "max"):
        return name, direction == "max"
    if not direction and name in (*_HIGHER, *_LOWER):
        return name, name in _HIGHER
    raise SettingError(
        setting,
        f"whether a high or a low '{name}' is better is not known",
        f"Write 'max:{name}' or 'min:{name}'.",
    )
