"""Large logits: the same numbers as torch's, in less memory."""

from __future__ import annotations

import math

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
