"""Muon: Jordan et al. 2024, kellerjordan.github.io/posts/muon; AdamW (arXiv:1711.05101) for what is no hidden matrix."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from tests.oracles.loop import Trained, Window, gradient_of, weights

HIDDEN = {
    "mix.weight",
    "block.self_attn.in_proj_weight",
    "block.self_attn.out_proj.weight",
    "block.linear1.weight",
    "block.linear2.weight",
}
"""Of the laws' transformer; its head is tied to an embedding, and one layer of it has no gradient."""


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    states: dict[str, Any] = {}
    losses = []
    for t, window in enumerate(windows, start=1):
        gradient, loss = gradient_of(model, window)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if name in gradient:
                    update = muon if name in HIDDEN else adamw
                    states[name] = update(weight, gradient[name], states.get(name), t, settings)
        losses.append(loss)
    return Trained(weights(model), weights(model), losses)


def muon(weight: Tensor, g: Tensor, b: Tensor | None, t: int, settings: dict[str, Any]) -> Tensor:
    """`B ← μB + (1−μ)G`, `O = NS(μB + (1−μ)G)`, `W ← W − ηλW − η·s·O`, with `s = √max(1, rows/columns)`, or 0.2·√max(rows, columns)."""
    mu, rate = settings["momentum"], settings["learning_rate"]
    rows, columns = g.shape
    b = mu * (torch.zeros_like(g) if b is None else b) + (1 - mu) * g
    looked_ahead = mu * b + (1 - mu) * g if settings["nesterov"] else b
    narrow = settings["iterations_in"] == "bf16"
    o = newton_schulz(looked_ahead.bfloat16() if narrow else looked_ahead, settings["iterations"]).to(g.dtype)
    s = 0.2 * math.sqrt(max(rows, columns)) if settings["match_adamw"] else math.sqrt(max(1, rows / columns))
    weight -= rate * settings["weight_decay"] * weight
    weight -= rate * s * o
    return b


def newton_schulz(g: Tensor, iterations: int) -> Tensor:
    """`X ← aX + (bA + cA²)X` with `A = XXᵀ`, from `X = G/‖G‖`, of the wide one of G and its transpose.

    In bfloat16 each line is rounded once as torch does, or the digits would differ from the second on.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = g.shape[0] > g.shape[1]
    x = g.T if tall else g
    x = x / x.norm()
    for _ in range(iterations):
        gram = x @ x.T
        polynomial = torch.addmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.addmm(x, polynomial, x, beta=a)
    return x.T if tall else x


def adamw(weight: Tensor, g: Tensor, state: Any, t: int, settings: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """`w ← w − ηλw − η·m̂ / (√v̂ + ε)`; vectors are not decayed."""
    rate, (beta1, beta2) = settings["adamw_learning_rate"], settings["adamw_betas"]
    m, v = state or (torch.zeros_like(g), torch.zeros_like(g))
    m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
    if weight.ndim > 1:
        weight -= rate * settings["weight_decay"] * weight
    weight -= rate * (m / (1 - beta1**t)) / ((v / (1 - beta2**t)).sqrt() + settings["adamw_epsilon"])
    return m, v
