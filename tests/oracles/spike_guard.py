"""Spike guard: an update is made unless the loss is above `median + factor · max(1.4826 · MAD, 0.01 · |median|)`.

The median and the median absolute deviation (Hampel 1974) are of the losses of the last `history` windows that made an update.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.oracles.loop import LEARNING_RATE, Trained, Window, gradient_of, weights


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    """`w ← w − η·g` for each window that is no spike; a window passed over leaves everything as it was."""
    accepted: list[float] = []
    losses = []
    for window in windows:
        gradient, loss = gradient_of(model, window)
        losses.append(loss)
        last = accepted[-settings["history"] :]
        if len(last) == settings["history"] and loss > bound(last, settings["factor"]):
            continue
        accepted.append(loss)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if name in gradient:
                    weight -= LEARNING_RATE * gradient[name]
    return Trained(weights(model), weights(model), losses)


def bound(losses: list[float], factor: float) -> float:
    centre = middle(losses)
    spread = middle([abs(loss - centre) for loss in losses])
    return centre + factor * max(1.4826 * spread, 0.01 * abs(centre))


def middle(values: list[float]) -> float:
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
