"""Mixup: Zhang et al. 2017, arXiv:1710.09412, section 2."""

from __future__ import annotations

from itertools import count
from typing import Any

import torch
from torch import nn

from tests.oracles.loop import Named, Trained, Window, differentiate, forward, plain_sgd, take
from tests.oracles.pairs import between, partner_of, shares_of, source_of


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    """`x̃ = λ·x_i + (1 − λ)·x_j` and `λ·loss(f(x̃), y_i) + (1 − λ)·loss(f(x̃), y_j)`, row by row."""
    numbers = count()

    def direction(model: nn.Module, window: Window) -> tuple[Named, float]:
        rows = len(window["labels"])
        shares = shares_of(rows, settings["alpha"], source_of("mixup", next(numbers)))
        losses, weights = [], []
        for row in range(rows):
            own, other = take(window, [row]), take(window, [partner_of(row, rows)])
            mixed = {
                name: shares[row] * own[name] + (1 - shares[row]) * other[name]
                for name in own
                if name != "labels"
            }
            logits = forward(model, mixed)
            loss, weight = between(logits, own["labels"], other["labels"], shares[row])
            losses.append(loss)
            weights.append(weight)
        return differentiate(model, torch.stack(losses).sum() / sum(weights))

    return plain_sgd(model, windows, direction)
