"""bf16 mixed precision (Kalamkar et al. 2019, arXiv:1905.12322): matrix products take operands rounded to bf16.

The rounding is made by hand, in a float32 loop without autocast. Autocast rounds more (the products themselves are
stored in bf16), so that the two agree as bf16 numbers do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from tests.oracles.loop import Trained, Window, gradient_of, plain_sgd

RELATIVE_TOLERANCE = 0.05


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
    """To the nearest bf16 number, and back."""
    return tensor.bfloat16().to(tensor.dtype)
