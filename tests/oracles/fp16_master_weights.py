"""Mixed precision with masters in fp16 (Micikevicius et al. 2018, arXiv:1710.03740): SGD on masters in fp32, each forward from the masters
rounded to fp16.

By hand as in the loop of master_weights. No window overflows here, so that the scale of the loss cancels; tests/unit/techniques/test_fp16_master_weights.py
has those that do.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.oracles.fp16 import rounded, rounded_products
from tests.oracles.loop import Trained, Window
from tests.oracles.master_weights import train_masters

# fp16 has 11 bits, bf16 8: eight times as close
RELATIVE_TOLERANCE = 0.2 / 8
NEAR_FULL_PRECISION = 0.1 / 8
# float64 would be rounded too
DTYPE = torch.float32
SAME_WITHIN = 0.05
# a gradient that is nothing but rounding, such as a key bias's, is made a whole step of by Adam and its kin
SAME_FLOOR = 0.3
CHANGES_WEIGHTS = True


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    with rounded_products():
        return train_masters(model, windows, rounded)
