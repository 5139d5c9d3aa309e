"""Lion: Chen et al. 2023, arXiv:2302.06675, algorithm 2; vectors are not decayed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.oracles.loop import Trained, Window, gradient_of, weights


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    """`c ← β₁m + (1−β₁)g`, `w ← w − η(sign(c) + λw)`, `m ← β₂m + (1−β₂)g`."""
    beta1, beta2 = settings["betas"]
    moments: dict[str, Tensor] = {}
    losses = []
    for window in windows:
        gradient, loss = gradient_of(model, window)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if name not in gradient:
                    continue
                g = gradient[name]
                m = moments.get(name, torch.zeros_like(g))
                c = beta1 * m + (1 - beta1) * g
                moments[name] = beta2 * m + (1 - beta2) * g
                decay = settings["weight_decay"] * weight if weight.ndim > 1 else 0.0
                weight -= settings["learning_rate"] * (softened_sign(c, settings["epsilon"]) + decay)
        losses.append(loss)
    return Trained(weights(model), weights(model), losses)


def softened_sign(c: Tensor, epsilon: float) -> Tensor:
    """`c / max(|c|, ε)`: the sign, but for elements smaller than epsilon; the paper's has none."""
    return c / c.abs().clamp(min=epsilon) if epsilon else c.sign()
