from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from snugfit.step.step import Step
from snugfit.techniques.learning.clip_norm import ClipNorm
from snugfit.techniques.learning.clip_value import ClipValue
from tests.unit.techniques.settings import MOMENT, context, parameter, refuses


@pytest.mark.parametrize("value", [0, -1.0, math.nan])
def test_an_impossible_bound_is_refused(value: float) -> None:
    refuses(ClipValue, max_value=value)


def test_each_element_is_bounded_by_itself_and_those_within_stay_bit_for_bit() -> None:
    weights = [parameter([0.0] * 3, [3.0, -0.1, -7.0]), parameter([0.0]), parameter([0.0], [1 / 3])]
    adjust = ClipValue(max_value=0.5).seams(context()).adjust
    assert adjust is not None and adjust(weights, MOMENT) == {}
    found = [weight.grad.tolist() for weight in weights if weight.grad is not None]
    assert found == [[0.5, -0.1, -0.5], [1 / 3]]


@pytest.mark.parametrize("order", [1, -1])
def test_elements_are_bounded_before_the_norm_is(order: int) -> None:
    """(3, 4) is first (1, 1) and then (0.5, 0.5) long; the other way round it would be (0.42, 0.57)."""
    model = nn.Linear(2, 1, bias=False).double()
    techniques = [ClipValue(max_value=1.0), ClipNorm(max_norm=math.sqrt(0.5))][::order]
    step = Step(
        model,
        torch.optim.SGD(model.parameters(), lr=1.0),
        lambda outputs, data: outputs[:, 0],
        techniques,
    )
    before = model.weight.detach().clone()
    step((torch.tensor([[3.0, 4.0]], dtype=torch.float64), torch.zeros(1)))
    assert (before - model.weight.detach()).flatten().tolist() == pytest.approx([0.5, 0.5])
