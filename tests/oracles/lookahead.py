"""Lookahead: Zhang et al. 2019, arXiv:1907.08610, algorithm 1."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.oracles.loop import Named, Trained, Window, gradient_of, plain_sgd, weights


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    """After each `k` updates `φ ← φ + α(θ − φ)` and `θ ← φ`; what is evaluated are the `θ` that training goes on with."""
    slow = weights(model)
    return plain_sgd(model, windows, gradient_of, after=lambda updates: move(slow, model, updates, settings))


def move(slow: Named, model: nn.Module, updates: int, settings: dict[str, Any]) -> None:
    if updates % settings["every"]:
        return
    with torch.no_grad():
        for name, weight in model.named_parameters():
            slow[name] = slow[name] + settings["alpha"] * (weight - slow[name])
            weight.copy_(slow[name])
