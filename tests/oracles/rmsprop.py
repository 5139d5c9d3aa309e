"""RMSprop: Tieleman & Hinton 2012, lecture 6.5; centered as in Graves 2013, arXiv:1308.0850, equations 38-42; vectors are not decayed."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.oracles.loop import Trained, Window, gradient_of, weights


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    """`n ← αn + (1−α)g²`, `m ← αm + (1−α)g`, `b ← μb + g / (√(n − m²) + ε)`, `w ← w − ηb`; without `m²` unless centered."""
    alpha, epsilon, mu = settings["decay"], settings["epsilon"], settings["momentum"]
    states: dict[str, tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}
    losses = []
    for window in windows:
        gradient, loss = gradient_of(model, window)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if name not in gradient:
                    continue
                g = gradient[name]
                if weight.ndim > 1:
                    g = g + settings["weight_decay"] * weight
                zero = torch.zeros_like(g)
                n, m, b = states.get(name, (zero, zero, zero))
                n, m = alpha * n + (1 - alpha) * g * g, alpha * m + (1 - alpha) * g
                variance = n - m * m if settings["centered"] else n
                b = mu * b + g / (variance.sqrt() + epsilon)
                states[name] = n, m, b
                weight -= settings["learning_rate"] * b
        losses.append(loss)
    return Trained(weights(model), weights(model), losses)
