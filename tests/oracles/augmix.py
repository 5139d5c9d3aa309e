"""AugMix: Hendrycks et al. 2019, arXiv:1912.02781. What it does to pictures is in the unit tests; the step is a plain one."""

from __future__ import annotations

from typing import Any

from torch import nn

from tests.oracles.loop import Trained, Window, gradient_of, plain_sgd


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    return plain_sgd(model, windows, gradient_of)
