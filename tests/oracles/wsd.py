"""Warm-up, stable, decay: Hu et al. 2024, arXiv:2404.06395, section 4.2; Hägele et al. 2024, arXiv:2405.18392, equation 1."""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from tests.oracles.constant import rise, warmup
from tests.oracles.loop import Trained, Window, gradient_of, plain_sgd


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    return plain_sgd(model, windows, gradient_of, lambda updates: factor(updates, total, settings))


def factor(updates: int, total: int, settings: dict[str, Any]) -> float:
    """`f(n) = 1 − √((n − (N − N_decay)) / N_decay)` over the last N_decay updates, or the same without the root."""
    start = warmup(total, settings)
    length = warmup(total, {"warmup": settings["cooldown"]})
    if updates < start:
        return rise(updates, start)
    if updates < total - length:
        return 1.0
    x = (updates - (total - length)) / length
    f = 1 - math.sqrt(x) if settings["shape"] == "1-sqrt" else 1 - x
    return settings["minimum"] + (1 - settings["minimum"]) * f
