"""RAdam: Liu et al. 2020, arXiv:1908.03265, algorithm 2, with the decay of arXiv:1711.05101; vectors are not decayed."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from tests.oracles.loop import Trained, Window, gradient_of, weights


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    """`w ← w − ηλw`, then the step of `direction`."""
    rate = settings["learning_rate"]
    moments: dict[str, tuple[Tensor, Tensor]] = {}
    losses = []
    for t, window in enumerate(windows, start=1):
        gradient, loss = gradient_of(model, window)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if name not in gradient:
                    continue
                zero = torch.zeros_like(weight)
                m, v = moments.get(name, (zero, zero))
                moments[name], step = direction(gradient[name], m, v, t, settings)
                if weight.ndim > 1:
                    weight -= rate * settings["weight_decay"] * weight
                weight -= rate * step
        losses.append(loss)
    return Trained(weights(model), weights(model), losses)


def direction(
    g: Tensor, m: Tensor, v: Tensor, t: int, settings: dict[str, Any]
) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """`m̂` while `ρ_t = ρ_∞ − 2tβ₂ᵗ/(1−β₂ᵗ)` is at most 5, then `r_t·m̂·√(1−β₂ᵗ) / (√v + ε)`.

    The paper turns at 4; its authors' code, and torch's, at 5. The paper has no ε.
    """
    beta1, beta2 = settings["betas"]
    m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
    m_hat = m / (1 - beta1**t)
    rho_inf = 2 / (1 - beta2) - 1
    rho = rho_inf - 2 * t * beta2**t / (1 - beta2**t)
    if rho <= 5:
        return (m, v), m_hat
    r = math.sqrt((rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho))
    return (m, v), r * m_hat * math.sqrt(1 - beta2**t) / (v.sqrt() + settings["epsilon"])
