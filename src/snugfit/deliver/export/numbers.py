"""Formats of weights in an export, and the rounding that each makes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from snugfit.deliver.export.scored import RoundWeight

FP32, BF16 = "fp32", "bf16"

_TYPES = {FP32: torch.float32, BF16: torch.bfloat16}


def stored_numbers(model: nn.Module) -> str:
    """Return the format of a model's weights: bf16 where all are so, else fp32."""
    types = {each.dtype for each in model.parameters() if each.is_floating_point()}
    return BF16 if types == {torch.bfloat16} else FP32


def dtype_of(numbers: str) -> torch.dtype:
    """Return torch's name of a format."""
    return _TYPES[numbers]


def rounding_to(numbers: str) -> RoundWeight | None:
    """Return what rounds a weight as a file in that format does; None where float32 holds it as it is."""
    if numbers == FP32:
        return None
    dtype = dtype_of(numbers)

    def round_weight(weight: Tensor) -> Tensor:
        return weight.to(dtype).to(weight.dtype) if weight.is_floating_point() else weight

    return round_weight
