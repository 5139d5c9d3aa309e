"""MADGRAD: Defazio & Jelassi 2021, arXiv:2101.11075, algorithm 1, with decay in the gradient; vectors are not decayed."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from tests.oracles.loop import Trained, Window, gradient_of, weights


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    """`λ = η√(k+1)`, `s ← s + λg`, `ν ← ν + λg²`, `z = x₀ − s / (∛ν + ε)`, `x ← (1−c)x + cz` with `c = 1 − momentum`."""
    start = weights(model)
    s = {name: torch.zeros_like(weight) for name, weight in start.items()}
    v = {name: torch.zeros_like(weight) for name, weight in start.items()}
    c = 1 - settings["momentum"]
    losses = []
    for k, window in enumerate(windows):
        gradient, loss = gradient_of(model, window)
        step = settings["learning_rate"] * math.sqrt(k + 1)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if name not in gradient:
                    continue
                g = gradient[name]
                if weight.ndim > 1:
                    g = g + settings["weight_decay"] * weight
                s[name] = s[name] + step * g
                v[name] = v[name] + step * g * g
                z = start[name] - s[name] / (v[name] ** (1 / 3) + settings["epsilon"])
                weight.copy_((1 - c) * weight + c * z)
        losses.append(loss)
    return Trained(weights(model), weights(model), losses)
