"""Pure bf16 (Zamirai et al. 2020, arXiv:2010.06192): on average the same as SGD in full precision, from rounded weights.

The loop is in float32, and rounded where it starts: a rounding that is right on average leaves only its scatter.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.oracles.loop import Trained, Window, gradient_of, plain_sgd

# bf16 has 8 bits, so that weights scatter by 2^-9 of themselves an update, and what is learned here is as little of some: one run
# is 0.9 apart from the loop, and the mean of 64 is 0.12
AVERAGED_OVER = 64
RELATIVE_TOLERANCE = 0.15
NEAR_FULL_PRECISION = 0.15
CHANGES_WEIGHTS = True
# float64 would be rounded too; micro-batches are rounded one by one and added up in bf16
DTYPE = torch.float32
SAME_WITHIN = 0.05
# a gradient that is nothing but rounding, such as a key bias's, is made a whole step of by Adam and its kin
SAME_FLOOR = 0.3


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.bfloat16())
    return plain_sgd(model, windows, gradient_of)
