"""Clipped SGD with momentum on the SAM gradient of the smoothed contrastive loss of the hardest rows, averaged.

In the order of the papers: the rows are ranked with the whole window as negatives; the hardest are contrasted with
each other; SAM ranks again at the perturbed point; clipping acts on what SAM found; the average follows the update.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.oracles.clip_norm import clipped
from tests.oracles.ema import move
from tests.oracles.hard_examples import hardest
from tests.oracles.loop import (
    IGNORED,
    LEARNING_RATE,
    Named,
    Trained,
    Window,
    contrastive_losses,
    differentiate,
    forward,
    rows,
    take,
    weights,
)
from tests.oracles.sam import twice


def train(
    model: nn.Module,
    windows: list[Window],
    settings: dict[str, dict[str, Any]],
    factors: list[float],
    momentum: float,
) -> Trained:
    """`settings` by technique; `factors` of the learning rate, one an update."""
    averages, velocity = weights(model), dict[str, Tensor]()
    losses = []
    direction = twice(lambda model, window: of_the_hardest(model, window, settings), settings["sam"])
    for updates, (window, factor) in enumerate(zip(windows, factors, strict=True)):
        gradient, loss = direction(model, window)
        gradient = clipped(gradient, settings["clip_norm"]["max_norm"])
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if name in gradient:
                    g = gradient[name]
                    velocity[name] = momentum * velocity[name] + g if name in velocity else g
                    weight -= LEARNING_RATE * factor * velocity[name]
        move(averages, model, updates + 1, settings["ema"])
        losses.append(loss)
    return Trained(weights(model), averages, losses)


def of_the_hardest(
    model: nn.Module, window: Window, settings: dict[str, dict[str, Any]]
) -> tuple[Named, float]:
    epsilon = settings["label_smoothing"]["epsilon"]
    rows = hardest(*smoothed_losses(model, window, epsilon), settings["hard_examples"]["fraction"])
    losses, counts = smoothed_losses(model, take(window, rows), epsilon)
    return differentiate(model, torch.stack(losses).sum() / sum(counts))


def smoothed_losses(model: nn.Module, window: Window, epsilon: float) -> tuple[list[Tensor], list[int]]:
    """`(1 − ε)` of the contrastive loss and `ε` of the cross-entropy with the uniform distribution."""
    losses, counts = contrastive_losses(model, window)
    found = []
    for row, loss in zip(rows(window), losses, strict=True):
        logits = forward(model, row)["logits"][0]
        normaliser = sum(logit.exp() for logit in logits)
        uniform = -sum((logit.exp() / normaliser).log() for logit in logits) / len(logits)
        found.append(loss if int(row["labels"][0]) == IGNORED else (1 - epsilon) * loss + epsilon * uniform)
    return found, counts
