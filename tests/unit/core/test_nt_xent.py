"""NT-Xent: the loss of SimCLR, against its equation as a loop over pairs."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from snugfit.core.losses import NTXent, couples_rows, find_loss
from snugfit.errors import SettingError


def equation(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    """Equation 1 of Chen et al. 2020 for each ordered pair of partners, in float64, one cosine after the other; the mean of a row's two."""
    rows = len(first)
    views = [*first.double(), *second.double()]

    def similarity(one: int, other: int) -> Tensor:
        a, b = views[one], views[other]
        return (a * b).sum() / (a.norm() * b.norm()) / temperature

    def term(one: int, other: int) -> Tensor:
        others = [similarity(one, each).exp() for each in range(2 * rows) if each != one]
        return -(similarity(one, other).exp() / sum(others)).log()

    return torch.stack([(term(row, row + rows) + term(row + rows, row)) / 2 for row in range(rows)])


@pytest.mark.parametrize("temperature", [0.1, 0.5])
def test_values_and_gradients_are_those_of_the_papers_equation(temperature: float) -> None:
    views = torch.randn(6, 2, 5, generator=torch.Generator().manual_seed(0), requires_grad=True)
    values = NTXent(temperature)(views, None).values
    expected = equation(views[:, 0], views[:, 1], temperature)
    torch.testing.assert_close(values.double(), expected, atol=1e-6, rtol=1e-6)
    (ours,) = torch.autograd.grad(values.sum(), views)
    (theirs,) = torch.autograd.grad(expected.sum(), views)
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)


def test_outputs_may_be_a_tensor_logits_or_a_pair() -> None:
    views = torch.randn(4, 2, 3)
    loss = find_loss("nt_xent")
    values = loss(views, None).values
    assert torch.equal(loss({"logits": views}, None).values, values)
    assert torch.equal(loss((views[:, 0], views[:, 1]), None).values, values)
    assert torch.equal(loss({"query": views[:, 0], "key": views[:, 1]}, None).values, values)


def test_views_that_are_all_alike_are_told_by_chance_alone() -> None:
    values = NTXent()(torch.ones(5, 2, 3), None).values
    torch.testing.assert_close(values, torch.full((5,), math.log(9)))


def test_half_precision_is_widened() -> None:
    assert NTXent()(torch.randn(4, 2, 3).bfloat16(), None).values.dtype == torch.float32


def test_it_compares_rows_and_refuses_what_it_cannot_use() -> None:
    assert couples_rows(find_loss("nt_xent"))
    with pytest.raises(SettingError, match="nt_xent needs two embeddings a row, and found"):
        NTXent()(torch.randn(4, 3), None)
    with pytest.raises(SettingError, match="nt_xent.temperature: must be positive, found 0"):
        NTXent(temperature=0)
