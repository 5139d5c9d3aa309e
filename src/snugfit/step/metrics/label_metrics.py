"""Metrics of rows with any number of labels: logits and labels of 0 and 1, both of shape (rows, labels). Logits that are NaN have no score."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from snugfit.errors import SettingError
from snugfit.step.metrics.all_rows_metrics import OfAllRows, OverAllRows

THRESHOLD = 0.5
"""The probability from which a label is predicted, where nothing else is said."""


def are_predicted(logits: Tensor, threshold: float = THRESHOLD) -> Tensor:
    """Return for each logit whether its label is predicted: its probability is the threshold at least."""
    return logits.float().sigmoid() >= threshold


def micro_f1(logits: Tensor, labels: Tensor, threshold: float = THRESHOLD) -> float:
    """Return 2 right / (predicted + true), summed over all labels: each label of a row counts once; NaN where there are none."""
    if bool(logits.isnan().any()):
        return math.nan
    right, predicted, true = (float(each.sum()) for each in _tallies(logits, labels, threshold))
    return 2 * right / (predicted + true) if predicted + true else math.nan


def macro_f1(logits: Tensor, labels: Tensor, threshold: float = THRESHOLD) -> float:
    """Return the mean of the F1 of each label, over the labels that are predicted or true at all."""
    return math.nan if bool(logits.isnan().any()) else macro_f1_of(*_tallies(logits, labels, threshold))


def exact_match(logits: Tensor, labels: Tensor, threshold: float = THRESHOLD) -> float:
    """Return the share of rows of which every label is right."""
    true = _as_truth(logits, labels)
    if bool(logits.isnan().any()):
        return math.nan
    return float((are_predicted(logits, threshold) == true).all(dim=1).double().mean())


def mean_average_precision(logits: Tensor, labels: Tensor) -> float:
    """Return the mean of the average precision of each label, over the labels that some row has.

    Source: the sum of precision times the rise of recall from one score to the next lower, as scikit-learn has it, not interpolated.
    """
    true = _as_truth(logits, labels)
    if bool(logits.isnan().any()):
        return math.nan
    values = [
        _average_precision(logits[:, place], true[:, place])
        for place in range(true.shape[1])
        if bool(true[:, place].any())
    ]
    return sum(values) / len(values) if values else math.nan


def macro_f1_of(right: Tensor, predicted: Tensor, true: Tensor) -> float:
    """Return the mean of 2 right / (predicted + true) over the classes that are predicted or true at all."""
    both = predicted + true
    there = both > 0
    return float((2 * right[there] / both[there]).mean())


OF_LABEL_SETS: Mapping[str, OfAllRows] = {
    "micro_f1": micro_f1,
    "exact_match": exact_match,
    "mean_average_precision": mean_average_precision,
}


def label_set_metrics(threshold: float) -> Mapping[str, OverAllRows]:
    """Return the metrics that hang on the threshold, by the names of those for one class a row where there are such."""
    return {
        name: OverAllRows(partial(function, threshold=threshold))
        for name, function in (("micro_f1", micro_f1), ("macro_f1", macro_f1), ("exact_match", exact_match))
    }


def _tallies(logits: Tensor, labels: Tensor, threshold: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return how many predictions of each label are right, how many there are, and how many rows have it."""
    true, predicted = _as_truth(logits, labels), are_predicted(logits, threshold)
    return (true & predicted).double().sum(dim=0), predicted.double().sum(dim=0), true.double().sum(dim=0)


def _as_truth(logits: Tensor, labels: Tensor) -> Tensor:
    """Return which labels each row has.

    Raises:
        SettingError: they are no labels of 0 and 1, one for each logit.
    """
    if labels.ndim != 2 or logits.shape != labels.shape or not bool(((labels == 0) | (labels == 1)).all()):
        raise SettingError(
            "evaluate.metrics",
            "metrics of any number of labels a row need a label of 0 or 1 for each logit, found outputs of shape "
            f"{tuple(logits.shape)} for labels of shape {tuple(labels.shape)}",
            "Choose metrics of one class a row, such as macro_f1, or give such labels.",
        )
    return labels == 1


def _average_precision(scores: Tensor, true: Tensor) -> float:
    scores, order = scores.sort(descending=True)
    last = torch.ones_like(true)  # of the rows with one score
    last[:-1] = scores[1:] != scores[:-1]
    right = true[order].double().cumsum(0)[last]
    precision = right / (last.nonzero().flatten() + 1)
    return float((precision * right.diff(prepend=right.new_zeros(1))).sum() / right[-1])
