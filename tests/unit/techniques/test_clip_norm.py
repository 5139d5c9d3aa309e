from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from snugfit.techniques.learning.clip_norm import ClipNorm, clip_norm_
from tests.unit.techniques.settings import MOMENT, context, parameter, refuses


@pytest.mark.parametrize("value", [0, -1.0, float("nan")])
def test_an_impossible_bound_is_refused(value: float) -> None:
    refuses(ClipNorm, max_norm=value)


def test_a_long_gradient_is_scaled_to_the_bound_over_all_parameters_together() -> None:
    parameters = [parameter([0.0], [3.0]), parameter([0.0, 0.0], [0.0, 4.0]), parameter([0.0])]
    assert float(clip_norm_(parameters, max_norm=2.5)) == 5.0
    gradients = [p.grad.tolist() for p in parameters if p.grad is not None]
    assert gradients == [[1.5], [0.0, 2.0]]


def test_a_gradient_within_the_bound_is_left_bit_for_bit() -> None:
    values = [0.1, 1 / 3, 1e-300]
    weight = parameter([0.0] * 3, values)
    clip_norm_([weight], max_norm=1.0)
    assert weight.grad is not None and weight.grad.tolist() == values


def test_a_gradient_of_zero_stays_zero() -> None:
    weight = parameter([0.0], [0.0])
    assert float(clip_norm_([weight], max_norm=1.0)) == 0.0
    assert weight.grad is not None and weight.grad.tolist() == [0.0]


def test_without_gradients_the_norm_is_zero() -> None:
    assert float(clip_norm_([parameter([0.0])], max_norm=1.0)) == 0.0


def test_an_infinite_bound_only_measures() -> None:
    weight = parameter([0.0], [7.0])
    seams = ClipNorm(max_norm=math.inf).seams(context())
    assert seams.adjust is not None
    assert float(seams.adjust([weight], MOMENT)["gradient_norm"]) == 7.0
    assert weight.grad is not None and weight.grad.tolist() == [7.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_clips_as_torch_does_up_to_torchs_epsilon(dtype: torch.dtype) -> None:
    ours, theirs = (nn.Parameter(torch.zeros(50, dtype=dtype)) for _ in range(2))
    gradient = torch.randn(50, generator=torch.Generator().manual_seed(0)).to(dtype)
    ours.grad, theirs.grad = gradient.clone(), gradient.clone()
    clip_norm_([ours], 0.5)
    torch.nn.utils.clip_grad_norm_([theirs], 0.5)
    torch.testing.assert_close(ours.grad, theirs.grad)
