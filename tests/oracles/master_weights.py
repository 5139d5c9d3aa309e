"""Mixed precision with masters (Micikevicius et al. 2018, arXiv:1710.03740): SGD on masters in fp32, each forward from the masters rounded
to bf16.

The rounding is made by hand, in a float32 loop without autocast, of matrices alone, and of what is multiplied. Autocast rounds more (the
products themselves are stored in bf16, and so are gradients), so that the two agree as bf16 numbers do. tests/unit/techniques/test_master_weights.py
has a loop that rounds as torch does, and compares bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.oracles.bf16 import rounded, rounded_products
from tests.oracles.loop import LEARNING_RATE, Trained, Window, gradient_of, weights

# masters that are next to each other may round to weights that are 2^-9 of themselves apart, and what is learned here is as little of some
RELATIVE_TOLERANCE = 0.2
NEAR_FULL_PRECISION = 0.1
# float64 would be rounded too; micro-batches are rounded one by one, and added up in bf16
DTYPE = torch.float32
SAME_WITHIN = 0.05
# a gradient that is nothing but rounding, such as a key bias's, is made a whole step of by Adam and its kin
SAME_FLOOR = 0.3
ON_RANKS_WITHIN = 0.1  # gradients are added up over ranks in bf16
CHANGES_WEIGHTS = True


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    with rounded_products():
        return train_masters(model, windows, rounded)


def train_masters(model: nn.Module, windows: list[Window], low: Callable[[Tensor], Tensor]) -> Trained:
    """SGD on masters, of which matrices are rounded by `low` for each forward; vectors, such as a norm's, are their own masters."""

    def as_weight(master: Tensor) -> Tensor:
        return low(master) if master.ndim >= 2 and master.numel() > max(master.shape) else master

    named = dict(model.named_parameters())
    masters = {name: as_weight(weight.detach()).clone() for name, weight in named.items()}

    def round_weights() -> None:
        with torch.no_grad():
            for name, weight in named.items():
                weight.copy_(as_weight(masters[name]))

    losses = []
    for window in windows:
        round_weights()
        gradient, loss = gradient_of(model, window)
        losses.append(loss)
        for name in gradient:
            masters[name] = masters[name] - LEARNING_RATE * gradient[name]
    round_weights()
    return Trained(weights(model), weights(model), losses)
