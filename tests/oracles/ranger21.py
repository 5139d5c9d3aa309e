"""Ranger21: Wright & Demeure 2021, arXiv:2106.13731, from the formulas of its parts; vectors are neither decayed nor drawn to length 1."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from tests.oracles.loop import Trained, Window, gradient_of, weights


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    """A gradient g without its units' means goes into `m_t = β₁²m_{t−2} + (1−β₁²)g` and `v_t = β₂v + (1−β₂)g²`, `v̄ = max(v̄, v_t)`.

    Matrices are multiplied by `1 − ηλ/√mean(v̂)`, the mean over all weights, and by `1 − 2ηλₙ(1 − 1/‖θ‖)` unit by unit. Then
    `θ ← θ − η/√((1+β₀)²+β₀²) · ((1+β₀)m_t − β₀m_{t−1})/(1−β₁ᵗ) / (√(v̄/(1−β₂ᵗ)) + ε)`, with
    `η_t = η·min(1, max(t(1−β₂)/2, t/t_up), (T−t+1)/t_down)`.
    """
    beta0, (beta1, beta2), epsilon = settings["negative_momentum"], settings["betas"], settings["epsilon"]
    zero = {name: torch.zeros_like(weight) for name, weight in weights(model).items()}
    m = [dict(zero), dict(zero)]
    v, highest, losses = dict(zero), dict(zero), []
    for t, window in enumerate(windows, start=1):
        gradient, loss = gradient_of(model, window)
        up, down = round(settings["warmup"] * total), round(settings["warmdown"] * total)
        rate = settings["learning_rate"] * min(1.0, max(t * (1 - beta2) / 2, t / up), (total - t + 1) / down)
        squares, count = torch.zeros(()), 0
        for name, g in gradient.items():
            if g.ndim > 1:
                g = g - g.flatten(1).mean(dim=1).reshape(-1, *[1] * (g.ndim - 1))
            m[t % 2][name] = beta1**2 * m[t % 2][name] + (1 - beta1**2) * g
            v[name] = beta2 * v[name] + (1 - beta2) * g * g
            highest[name] = torch.maximum(highest[name], v[name])
            squares, count = squares + (v[name] / (1 - beta2**t)).sum(), count + g.numel()
        spread = math.sqrt(squares / count)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if name not in gradient:
                    continue
                if weight.ndim > 1:
                    weight *= 1 - rate * settings["weight_decay"] / spread
                    lengths = weight.flatten(1).norm(dim=1).reshape(-1, *[1] * (weight.ndim - 1))
                    weight *= 1 - 2 * rate * settings["norm_loss"] * (1 - 1 / (lengths + epsilon))
                momentum = (1 + beta0) * m[t % 2][name] - beta0 * m[(t - 1) % 2][name]
                momentum = momentum / (1 - beta1**t) / math.sqrt((1 + beta0) ** 2 + beta0**2)
                weight -= rate * momentum / ((highest[name] / (1 - beta2**t)).sqrt() + epsilon)
        losses.append(loss)
    return Trained(weights(model), weights(model), losses)
