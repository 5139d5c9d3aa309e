"""Gradient clipping: Pascanu et al. 2013, arXiv:1211.5063, algorithm 1."""

from __future__ import annotations

from typing import Any

from torch import nn

from tests.oracles.loop import Named, Trained, Window, gradient_of, length_of, plain_sgd


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    """If `‖g‖ > c` then `g ← c·g / ‖g‖`."""

    def direction(model: nn.Module, window: Window) -> tuple[Named, float]:
        gradient, loss = gradient_of(model, window)
        return clipped(gradient, settings["max_norm"]), loss

    return plain_sgd(model, windows, direction)


def clipped(gradient: Named, bound: float) -> Named:
    length = length_of(gradient)
    if length <= bound:
        return gradient
    return {name: g * bound / length for name, g in gradient.items()}
