"""The schedule of the transformer: Vaswani et al. 2017, arXiv:1706.03762, equation 3."""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from tests.oracles.loop import Trained, Window, gradient_of, plain_sgd


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    return plain_sgd(model, windows, gradient_of, lambda updates: factor(updates, total, settings))


def factor(updates: int, total: int, settings: dict[str, Any]) -> float:
    """`d^-0.5 · min(n^-0.5, n · W^-1.5)` for update n, counted from 1."""
    number, start = updates + 1, settings["warmup"]
    rising = number / (start * math.sqrt(start))
    return min(1 / math.sqrt(number), rising) / math.sqrt(settings["dim"])
