"""Schedule-free AdamW: Defazio et al. 2024, arXiv:2405.15682, equations 3 to 5 and algorithm 1; vectors are not decayed."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.oracles.loop import Named, Trained, Window, gradient_of, weights


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    """`y = (1 − β₁)z + β₁x`, gradient g at y; `z ← z − γ(g/(√(v/(1 − β₂ᵗ)) + ε) + λy)`; `x ← (1 − c)x + cz`, `c = γ²/Σγ²`.

    Algorithm 1 puts `√(1 − β₂ᵗ)` into γ, and so into c; the authors' library, as here, keeps it with v, and in c takes the
    highest γ so far. Every parameter goes through the model as y.
    """
    beta1, beta2 = settings["betas"]
    x, z = weights(model), weights(model)
    v = {name: torch.zeros_like(tensor) for name, tensor in x.items()}
    y, squares, highest, losses = weights(model), 0.0, 0.0, []
    for t, window in enumerate(windows, start=1):
        gamma = settings["learning_rate"] * min(1.0, t / settings["warmup"])
        highest = max(highest, gamma)
        squares += highest**2
        c = highest**2 / squares
        gradient, loss = gradient_of(model, window)
        for name, g in gradient.items():
            v[name] = beta2 * v[name] + (1 - beta2) * g * g
            step = g / ((v[name] / (1 - beta2**t)).sqrt() + settings["epsilon"])
            if g.ndim > 1:
                step = step + settings["weight_decay"] * y[name]
            z[name] = z[name] - gamma * step
            x[name] = (1 - c) * x[name] + c * z[name]
            y[name] = (1 - beta1) * z[name] + beta1 * x[name]
        put(model, y)
        losses.append(loss)
    return Trained(y, x, losses)


def put(model: nn.Module, values: Named) -> None:
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(values[name])
