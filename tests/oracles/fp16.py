"""fp16 mixed precision (Micikevicius et al. 2018, arXiv:1710.03740): matrix products take operands rounded to fp16.

The rounding is made by hand, in a float32 loop without autocast. No window overflows here, so that the scale of the loss
cancels; tests/laws/test_loss_scale.py has those that do. Autocast rounds more (the products themselves are stored in
fp16, and gradients pass through it), so that the two agree as numbers of 11 bits do: eight times closer than bf16.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from tests.oracles.loop import Trained, Window, gradient_of, plain_sgd

RELATIVE_TOLERANCE = 0.05 / 8


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    """Gradients and weights stay in float32; only what is multiplied is rounded."""
    with rounded_products():
        return plain_sgd(model, windows, gradient_of)


@contextmanager
def rounded_products() -> Iterator[None]:
    original = F.linear

    def linear(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        product = original(rounded(inputs), rounded(weight))
        return rounded(product if bias is None else product + rounded(bias))

    F.linear = linear
    try:
        yield
    finally:
        F.linear = original


def rounded(tensor: Tensor) -> Tensor:
    """To the nearest fp16 number, and back."""
    return tensor.half().to(tensor.dtype)
