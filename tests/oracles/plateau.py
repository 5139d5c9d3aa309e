"""Reduction on a plateau: a run without evaluations has the constant rate that follows warm-up.

What evaluations do is compared with torch's ReduceLROnPlateau over whole runs, beside the technique's other tests.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from tests.oracles.constant import rise, warmup
from tests.oracles.loop import Trained, Window, gradient_of, plain_sgd


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    return plain_sgd(model, windows, gradient_of, lambda updates: factor(updates, total, settings))


def factor(updates: int, total: int, settings: dict[str, Any], reductions: int = 0) -> float:
    """`f^k` after k reductions, not below the minimum."""
    lowered = max(settings["minimum"], settings["factor"] ** reductions)
    return rise(updates, warmup(total, settings)) * lowered
