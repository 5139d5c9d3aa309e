"""Gradients are rounded to bf16 between devices alone: on one, as here, the loop is the plain one.

How far several devices are from it in one window, and that it is torch's own rounding, is in tests/ranks.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from tests.oracles.loop import Trained, Window, gradient_of, plain_sgd

COMPUTES_ELSEWHERE = True
ON_RANKS_WITHIN = 0.1  # after some updates, and under Muon and SAM, which make more of a rounding


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    return plain_sgd(model, windows, gradient_of)
