"""Large logits: the same numbers as torch's, in less memory."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from snugfit.core.logits_loss import LARGE
from snugfit.core.losses import IGNORE_INDEX, cross_entropy
from snugfit.errors import DataError
from snugfit.system.allocation_counter import AllocatedBytes

CLASSES = 2048
ROWS = LARGE // CLASSES


def drawn(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    source = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(ROWS, CLASSES, generator=source, dtype=torch.float32).to(dtype)
    labels = torch.randint(0, CLASSES, (ROWS,), generator=source)
    labels[::4] = IGNORE_INDEX
    return logits, labels, torch.rand(ROWS, generator=source)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_large_logits_have_the_values_and_gradients_of_torch_bit_for_bit(dtype: torch.dtype) -> None:
    logits, labels, weights = drawn(dtype)
    ours, theirs = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    wide = torch.promote_types(dtype, torch.float32)
    values = cross_entropy(ours, {"labels": labels}).values
    expected = F.cross_entropy(theirs.to(wide), labels, ignore_index=IGNORE_INDEX, reduction="none")
    assert values.grad_fn is not None and "LargeCrossEntropy" in repr(values.grad_fn.next_functions)
    values.backward(weights.to(wide))
    expected.backward(weights.to(wide))
    assert torch.equal(values, expected)
    assert ours.grad is not None and theirs.grad is not None
    assert torch.equal(ours.grad, theirs.grad)


def test_nan_and_infinity_in_ignored_rows_of_large_logits_reach_no_gradient() -> None:
    logits, labels, weights = drawn()
    logits[0], logits[4, 0] = math.nan, math.inf
    spoiled = logits.requires_grad_()
    values = cross_entropy(spoiled, {"labels": labels}).values
    values.backward(weights)
    assert values[0] == 0 and values[4] == 0
    assert spoiled.grad is not None and spoiled.grad.isfinite().all()
    assert not spoiled.grad[labels == IGNORE_INDEX].any()


def test_large_logits_take_one_tensor_of_their_size_forward_and_one_backward() -> None:
    logits, labels, weights = drawn()
    logits.requires_grad_()
    with AllocatedBytes() as allocated:
        values = cross_entropy(logits, {"labels": labels}).values
    assert allocated.peak < 1.1 * logits.nbytes
    with AllocatedBytes() as allocated:
        values.backward(weights)
    assert allocated.peak < 1.1 * logits.nbytes


def test_a_label_out_of_range_of_large_logits_is_said() -> None:
    logits, labels, _ = drawn()
    labels[1] = CLASSES
    with pytest.raises(DataError, match=f"Give labels from 0 to {CLASSES - 1}"):
        cross_entropy(logits, {"labels": labels})


@pytest.mark.parametrize("spoiled", [False, True], ids=["finite", "NaN where ignored"])
def test_gradients_of_large_logits_have_gradients_as_those_of_torch(spoiled: bool) -> None:
    """As a penalty of gradients asks for: a part of it that is left out would be missed by nobody."""
    logits, labels, weights = drawn()
    kept = labels != IGNORE_INDEX
    found = []
    for values_of in (lambda made: cross_entropy(made, {"labels": labels}).values, of_torch(labels)):
        given = logits.clone().requires_grad_()
        scale = torch.ones(ROWS, requires_grad=True)
        values = values_of(given.masked_fill(~kept.unsqueeze(-1), math.nan) if spoiled else given)
        (first,) = torch.autograd.grad((values * weights * scale)[kept].sum(), given, create_graph=True)
        found.append(
            [first, *torch.autograd.grad(values[kept].sum() + 100 * first.square().sum(), (given, scale))]
        )
    for ours, theirs in zip(*found, strict=True):
        assert ours.isfinite().all()
        torch.testing.assert_close(ours, theirs)


def of_torch(labels: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    ignored = (labels == IGNORE_INDEX).unsqueeze(-1)
    return lambda made: F.cross_entropy(made.masked_fill(ignored, 0.0), labels, reduction="none")


def test_large_logits_of_each_row_by_itself_have_the_gradients_of_all() -> None:
    logits, labels, _ = drawn()

    def loss(own: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        rows = own.expand(ROWS, -1)
        return cross_entropy(rows, {"labels": label.expand(ROWS)}).values.mean()

    each = torch.func.vmap(torch.func.grad(loss))(logits, labels)
    together = logits.clone().requires_grad_()
    cross_entropy(together, {"labels": labels}).values.sum().backward()
    torch.testing.assert_close(each, together.grad)
