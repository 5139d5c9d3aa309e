"""Gradient cache (Gao et al. 2021, arXiv:2101.06983) is exact: it equals the gradient of the whole batch at once."""

from __future__ import annotations

from typing import Any

from torch import nn

from tests.oracles.loop import Trained, Window, contrastive_gradient, plain_sgd


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    """No cache at all: every row in one graph, and one backward."""
    return plain_sgd(model, windows, contrastive_gradient)
