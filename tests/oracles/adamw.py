"""AdamW: Loshchilov & Hutter 2019, arXiv:1711.05101, algorithm 2; vectors are not decayed."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.oracles.loop import Trained, Window, gradient_of, weights


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    """`m ← β₁m + (1−β₁)g`, `v ← β₂v + (1−β₂)g²`, `w ← w − ηλw − η·m̂ / (√v̂ + ε)` with `m̂ = m/(1−β₁ᵗ)`, `v̂ = v/(1−β₂ᵗ)`."""
    rate, epsilon, (beta1, beta2) = settings["learning_rate"], settings["epsilon"], settings["betas"]
    moments: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
    losses = []
    for t, window in enumerate(windows, start=1):
        gradient, loss = gradient_of(model, window)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if name not in gradient:
                    continue
                g = gradient[name]
                m, v = moments.get(name, (torch.zeros_like(g), torch.zeros_like(g)))
                m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
                moments[name] = m, v
                if weight.ndim > 1:
                    weight -= rate * settings["weight_decay"] * weight
                weight -= rate * (m / (1 - beta1**t)) / ((v / (1 - beta2**t)).sqrt() + epsilon)
        losses.append(loss)
    return Trained(weights(model), weights(model), losses)
