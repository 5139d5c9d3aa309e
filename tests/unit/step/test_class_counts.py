"""Counts of classes come by name or in the order of the labels, and make the same weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from snugfit.errors import SettingError
from snugfit.step.step import Step
from snugfit.step.step_arguments import counts_by_name
from snugfit.techniques.learning.adamw import AdamW
from snugfit.techniques.learning.class_weights import ClassWeights


@pytest.mark.parametrize(
    "counts",
    [
        {"a": 5, "b": 9, "c": 2},
        [5, 9, 2],
        (5, 9, 2),
        np.array([5, 9, 2]),
        torch.bincount(torch.tensor([0] * 5 + [1] * 9 + [2] * 2)),
    ],
)
def test_counts_in_any_form_weigh_the_classes_of_a_step_alike(counts: Any) -> None:
    window = (torch.eye(3), torch.arange(3))
    losses = []
    for given, techniques in ((counts, [ClassWeights()]), (None, [ClassWeights((16 / 15, 16 / 27, 16 / 6))])):
        torch.manual_seed(0)
        step = Step(nn.Linear(3, 3), AdamW(), techniques=techniques, class_counts=given)
        losses.append(step(window).loss)
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


@pytest.mark.parametrize("counts", [5, "590", [], [0.5, 0.5], [5, -1], {"a": "many"}, torch.tensor(3)])
def test_counts_in_another_form_are_refused_by_what_they_are(counts: Any) -> None:
    with pytest.raises(SettingError, match=r"class_counts: must be whole numbers of rows") as refused:
        Step(nn.Linear(2, 2), AdamW(), class_counts=counts)
    assert "[900, 100]" in str(refused.value)


def test_no_counts_and_those_of_a_plan_stay_as_they_are() -> None:
    assert counts_by_name(None) is None
    assert counts_by_name({}) == {}
