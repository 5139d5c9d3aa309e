"""Metrics of rows with any number of labels, beside scikit-learn's."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from sklearn.metrics import accuracy_score, average_precision_score, f1_score

from snugfit.core.batch import Batch
from snugfit.errors import SettingError
from snugfit.step.metrics.label_metrics import (
    exact_match,
    label_set_metrics,
    macro_f1,
    mean_average_precision,
    micro_f1,
)
from snugfit.step.metrics.metric import check_fit, make_metric, monitored
from snugfit.strategies.base import Strategy


def drawn(rows: int = 40, labels: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits with ties, and labels of which the last one is rare."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(rows, labels, generator=generator).mul(2).round().div(2)
    true = (torch.rand(rows, labels, generator=generator) < 0.4).float()
    true[:, -1] = 0
    true[3, -1] = 1
    true[5] = 0
    return logits, true


def evaluated(name: str, logits: torch.Tensor, labels: torch.Tensor, parts: int = 1) -> float:
    metric = make_metric(name)
    for rows in torch.arange(len(logits)).tensor_split(parts):
        metric.update(logits[rows], Batch.of({"labels": labels[rows]}))
    return metric.compute(Strategy())


@pytest.mark.parametrize("parts", [1, 3])
def test_the_metrics_are_those_of_scikit_learn_in_any_number_of_parts(parts: int) -> None:
    logits, true = drawn()
    predicted = (logits.sigmoid() >= 0.5).numpy()
    assert evaluated("micro_f1", logits, true, parts) == pytest.approx(
        f1_score(true.numpy(), predicted, average="micro")
    )
    assert evaluated("exact_match", logits, true, parts) == accuracy_score(true.numpy(), predicted)
    assert evaluated("mean_average_precision", logits, true, parts) == pytest.approx(
        average_precision_score(true.numpy(), logits.numpy(), average="macro")
    )


def test_the_f1_of_labels_that_are_nowhere_is_in_no_mean() -> None:
    logits, true = drawn()
    logits[:, -1], true[:, -1] = -9.0, 0.0
    predicted = (logits.sigmoid() >= 0.5).numpy()
    expected = f1_score(true.numpy()[:, :-1], predicted[:, :-1], average="macro")
    assert macro_f1(logits, true) == pytest.approx(expected)
    of_four = mean_average_precision(logits[:, :-1], true[:, :-1])
    assert mean_average_precision(logits, true) == pytest.approx(of_four)


def test_the_threshold_decides_which_labels_are_predicted() -> None:
    logits, true = drawn()
    for threshold in (0.2, 0.5, 0.8):
        predicted = (logits.sigmoid() >= threshold).numpy()
        own = label_set_metrics(threshold)
        assert own["micro_f1"](logits, true) == pytest.approx(
            f1_score(true.numpy(), predicted, average="micro")
        )
        assert own["exact_match"](logits, true) == accuracy_score(true.numpy(), predicted)
        kept = [place for place in range(5) if predicted[:, place].any() or true[:, place].any()]
        assert own["macro_f1"](logits, true) == pytest.approx(
            f1_score(true.numpy()[:, kept], predicted[:, kept], average="macro", zero_division=0)
        )


def test_without_any_label_there_is_no_score() -> None:
    logits, none = torch.full((4, 3), -5.0), torch.zeros(4, 3)
    assert math.isnan(micro_f1(logits, none)) and math.isnan(mean_average_precision(logits, none))
    assert evaluated("exact_match", logits, none) == 1.0


@pytest.mark.parametrize("metric", [micro_f1, macro_f1, exact_match, mean_average_precision])
def test_logits_that_are_no_numbers_have_no_score(metric: Any) -> None:
    logits, labels = torch.zeros(4, 3), torch.eye(4, 3)
    logits[2, 1] = torch.nan
    assert math.isnan(metric(logits, labels))


@pytest.mark.parametrize("labels", [torch.zeros(4, dtype=torch.int64), torch.full((4, 3), 0.5)])
def test_labels_of_one_class_a_row_and_soft_ones_are_refused(labels: torch.Tensor) -> None:
    with pytest.raises(SettingError, match="label of 0 or 1 for each logit"):
        evaluated("micro_f1", torch.zeros(4, 3), labels)


def test_higher_is_better_and_a_perplexity_has_no_meaning() -> None:
    for name in ("micro_f1", "exact_match", "mean_average_precision"):
        assert monitored(name, [name]) == (name, True)
    with pytest.raises(SettingError, match="Use micro_f1"):
        check_fit(["perplexity"], "binary_cross_entropy")
