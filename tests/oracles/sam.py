"""Sharpness-aware minimisation: Foret et al. 2021, arXiv:2010.01412, algorithm 1; adaptive: arXiv:2102.11600.

m-SAM: section 4.1 there, and Andriushchenko & Flammarion 2022, arXiv:2206.06232, equation 2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.oracles.loop import (
    IGNORED,
    Direction,
    Named,
    Trained,
    Window,
    gradient_of,
    length_of,
    plain_sgd,
    take,
    weights,
)


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    """`ε = ρ·g/‖g‖` (adaptive: `ρ·|w|²g / ‖|w|g‖`), then step with the gradient at `w + ε` from `w`."""
    if settings["m"] is None:
        return plain_sgd(model, windows, twice(gradient_of, settings))
    return plain_sgd(model, windows, in_groups(twice(gradient_of, settings), settings["m"]))


def in_groups(direction: Direction, m: int) -> Direction:
    """`Σ_G n_G d(G) / Σ_G n_G` over groups of `m` neighbouring rows with `n_G` labels that count."""

    def of_window(model: nn.Module, window: Window) -> tuple[Named, float]:
        rows = len(window["labels"])
        total: Named = {name: torch.zeros_like(weight) for name, weight in weights(model).items()}
        counted, summed = 0, 0.0
        for start in range(0, rows, m):
            group = take(window, range(start, min(start + m, rows)))
            count = int((group["labels"] != IGNORED).sum())
            if count == 0:
                continue
            found, loss = direction(model, group)
            for name, vector in found.items():
                total[name] += count * vector
            counted, summed = counted + count, summed + count * loss
        return {name: vector / counted for name, vector in total.items()}, summed / counted

    return of_window


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
