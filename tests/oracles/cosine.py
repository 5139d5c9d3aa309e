"""Half a cosine: Loshchilov & Hutter 2017, arXiv:1608.03983, equation 5 without restarts."""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from tests.oracles.constant import rise, warmup
from tests.oracles.loop import Trained, Window, gradient_of, plain_sgd


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    return plain_sgd(model, windows, gradient_of, lambda updates: factor(updates, total, settings))


def factor(updates: int, total: int, settings: dict[str, Any]) -> float:
    """`η_min + (1 − η_min)(1 + cos(π·T_cur/T)) / 2`."""
    start = warmup(total, settings)
    if updates < start:
        return rise(updates, start)
    lowest = settings["minimum"]
    return lowest + (1 - lowest) * (1 + math.cos(math.pi * (updates - start) / (total - start))) / 2
