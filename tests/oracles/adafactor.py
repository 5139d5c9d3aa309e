"""Adafactor: Shazeer & Stern 2018, arXiv:1804.04235, algorithms 4 and 5, with a decoupled decay; vectors are not decayed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.oracles.loop import Trained, Window, gradient_of, weights


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    """`w ← w − ηλw − η·max(ε₂, RMS(w))·Û_t` with `Û = U / max(1, RMS(U)/d)`, `U = g / √V`, `β_t = 1 − t^−0.8`.

    The paper's own `η` falls with t; here it is the setting. Without `relative`, `max(ε₂, RMS(w))` is 1.
    """
    rate = settings["learning_rate"]
    states: dict[str, tuple[Tensor, ...]] = {}
    losses = []
    for t, window in enumerate(windows, start=1):
        gradient, loss = gradient_of(model, window)
        beta = 1 - t ** -settings["decay_power"]
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if name not in gradient:
                    continue
                states[name], v = moments(states.get(name), gradient[name], beta, settings["epsilon"])
                u = gradient[name] / v.sqrt()
                u = u / max(1.0, rms(u) / settings["clip"])
                scale = max(settings["smallest"], rms(weight)) if settings["relative"] else 1.0
                if weight.ndim > 1:
                    weight -= rate * settings["weight_decay"] * weight
                weight -= rate * scale * u
        losses.append(loss)
    return Trained(weights(model), weights(model), losses)


def moments(
    state: tuple[Tensor, ...] | None, g: Tensor, beta: float, epsilon: float
) -> tuple[tuple[Tensor, ...], Tensor]:
    """`R ← βR + (1−β)(g² + ε₁)·1`, `C ← βC + (1−β)1ᵀ(g² + ε₁)`, `V = RC / 1ᵀR`; for a vector `V ← βV + (1−β)(g² + ε₁)`."""
    square = g * g + epsilon
    if g.ndim == 1:
        (v,) = state or (torch.zeros_like(g),)
        v = beta * v + (1 - beta) * square
        return (v,), v
    r, c = state or (torch.zeros_like(square.sum(1)), torch.zeros_like(square.sum(0)))
    r, c = beta * r + (1 - beta) * square.sum(1), beta * c + (1 - beta) * square.sum(0)
    return (r, c), torch.outer(r, c) / r.sum()


def rms(x: Tensor) -> float:
    return float((x * x).mean()) ** 0.5
