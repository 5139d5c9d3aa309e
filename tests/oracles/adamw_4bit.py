"""AdamW with moments in 4 bits: Li, Chen & Zhu 2023, arXiv:2309.01507, in torchao's form: blocks of 128 for both moments.

The loop is that of 8 bits; only the codes and the blocks differ.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.oracles.adamw_8bit import adamw_with_rounded_moments
from tests.oracles.loop import Trained, Window

DTYPE = torch.float32  # torchao computes in it
SAME_WITHIN = 1e-3
RELATIVE_TOLERANCE = 1e-3
BLOCK = 128


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    """The first moment in signed dynamic codes with three exponents, the second in sixteenths without 0 (section 4.1)."""
    positive = [
        10.0**-e * (0.1 + 0.9 * (place + 0.5) / 2 ** (2 - e))
        for e in range(3)
        for place in range(2 ** (2 - e))
    ]
    signed = torch.tensor(sorted([0.0, 1.0, *positive, *(-value for value in positive)]))
    unsigned = torch.arange(1, 17) / 16

    def rounding(size: int) -> bool:
        return size >= settings["min_size"] and size % BLOCK == 0

    return adamw_with_rounded_moments(model, windows, settings, signed, unsigned, BLOCK, rounding)
