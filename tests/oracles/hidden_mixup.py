"""Mixup in front of the head: Sun et al. 2020, arXiv:2010.02394, equations 1 and 2."""

from __future__ import annotations

from itertools import count
from typing import Any

import torch
from torch import nn

from tests.oracles.loop import Named, Trained, Window, differentiate, forward, plain_sgd, take
from tests.oracles.pairs import between, partner_of, shares_of, source_of


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    """The head is affine: `W·(λ·h_i + (1 − λ)·h_j) + b = λ·z_i + (1 − λ)·z_j`, so the logits of two plain rows are mixed."""
    assert settings["at"] is None
    numbers = count()

    def direction(model: nn.Module, window: Window) -> tuple[Named, float]:
        rows = len(window["labels"])
        shares = shares_of(rows, settings["alpha"], source_of("hidden_mixup", next(numbers)))
        losses, weights = [], []
        for row, share in enumerate(shares):
            # both at the length of the window: places beyond one text mix with those of the other
            own, other = take(window, [row]), take(window, [partner_of(row, rows)])
            first, second = (forward(model, given) for given in (own, other))
            if not isinstance(first, torch.Tensor):
                first, second = first["logits"], second["logits"]
            logits = share * first + (1 - share) * second
            loss, weight = between(logits, own["labels"], other["labels"], share)
            losses.append(loss)
            weights.append(weight)
        return differentiate(model, torch.stack(losses).sum() / sum(weights))

    return plain_sgd(model, windows, direction)
