"""Linear decay: Devlin et al. 2018, arXiv:1810.04805, appendix A.2."""

from __future__ import annotations

from typing import Any

from torch import nn

from tests.oracles.constant import rise, warmup
from tests.oracles.loop import Trained, Window, gradient_of, plain_sgd


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    return plain_sgd(model, windows, gradient_of, lambda updates: factor(updates, total, settings))


def factor(updates: int, total: int, settings: dict[str, Any]) -> float:
    """A straight line from 1 after warm-up to 0 at update `total`."""
    start = warmup(total, settings)
    return rise(updates, start) if updates < start else (total - updates) / (total - start)
