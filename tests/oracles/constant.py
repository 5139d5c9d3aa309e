"""A constant rate after warm-up."""

from __future__ import annotations

from typing import Any

from torch import nn

from tests.oracles.loop import Trained, Window, gradient_of, plain_sgd


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    return plain_sgd(model, windows, gradient_of, lambda updates: factor(updates, total, settings))


def factor(updates: int, total: int, settings: dict[str, Any]) -> float:
    """`(n + 1) / W` for the first `W` updates, then 1."""
    return min(1.0, rise(updates, warmup(total, settings)))


def rise(updates: int, length: int) -> float:
    """The linear warm-up that every schedule here has: its first update is not lost."""
    return (updates + 1) / length if updates < length else 1.0


def warmup(total: int, settings: dict[str, Any]) -> int:
    """A number of updates from 1 on, a fraction of the run below."""
    given = settings["warmup"]
    return round(given * total) if given < 1 else int(given)
