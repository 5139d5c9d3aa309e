"""Inverse square root: Vaswani et al. 2017, arXiv:1706.03762, equation 3, divided by its highest value."""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from tests.oracles.constant import warmup
from tests.oracles.loop import Trained, Window, gradient_of, plain_sgd


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    return plain_sgd(model, windows, gradient_of, lambda updates: factor(updates, total, settings))


def factor(updates: int, total: int, settings: dict[str, Any]) -> float:
    """`min(n / W, √(W / n))` for update n, counted from 1; with a timescale t of its own `√(t / (t + n − W))`."""
    number, start = updates + 1, warmup(total, settings)
    if start and not settings["timescale"]:
        return min(number / start, math.sqrt(start / number))
    if number <= start:
        return number / start
    timescale = settings["timescale"] or 10_000
    return math.sqrt(timescale / (timescale + number - start))
