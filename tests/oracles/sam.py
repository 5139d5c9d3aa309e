"""Sharpness-aware minimisation: Foret et al. 2021, arXiv:2010.01412, algorithm 1; adaptive: arXiv:2102.11600."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.oracles.loop import Direction, Named, Trained, Window, gradient_of, length_of, plain_sgd, weights


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    """`ε = ρ·g/‖g‖` (adaptive: `ρ·|w|²g / ‖|w|g‖`), then step with the gradient at `w + ε` from `w`."""
    return plain_sgd(model, windows, twice(gradient_of, settings))


def twice(
    gradient_at: Direction, settings: dict[str, Any]
) -> Callable[[nn.Module, Window], tuple[Named, float]]:
    def direction(model: nn.Module, window: Window) -> tuple[Named, float]:
        start = weights(model)
        first, loss = gradient_at(model, window)
        size = {
            name: start[name].abs() if settings["adaptive"] else torch.ones_like(g)
            for name, g in first.items()
        }
        length = length_of({name: size[name] * g for name, g in first.items()})
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if name in first:
                    weight += settings["rho"] * size[name] ** 2 * first[name] / length
        second, _ = gradient_at(model, window)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                weight.copy_(start[name])
        return second, loss

    return direction
