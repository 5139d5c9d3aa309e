"""Flat, then half a cosine: fastai's fit_flat_cos (Howard & Gugger 2020, arXiv:2002.04688)."""

from __future__ import annotations

import math
from typing import Any

from torch import nn

from tests.oracles.constant import rise, warmup
from tests.oracles.loop import Trained, Window, gradient_of, plain_sgd


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    return plain_sgd(model, windows, gradient_of, lambda updates: factor(updates, total, settings))


def factor(updates: int, total: int, settings: dict[str, Any]) -> float:
    """1 for the part `flat` of what follows warm-up, then `(1 + cos(π·x)) / 2` over the rest."""
    start = warmup(total, settings)
    if updates < start:
        return rise(updates, start)
    bend = start + settings["flat"] * (total - start)
    return 1.0 if updates <= bend else (1 + math.cos(math.pi * (updates - bend) / (total - bend))) / 2
