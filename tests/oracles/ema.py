"""Moving average of the weights: Polyak & Juditsky 1992; warm-up of TensorFlow's ExponentialMovingAverage(num_updates)."""

from __future__ import annotations

from typing import Any

from torch import nn

from tests.oracles.loop import Named, Trained, Window, gradient_of, plain_sgd, weights


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    """`a ← d·a + (1 − d)·w` after update `n`, with `d = min(decay, (1 + n) / (10 + n))`."""
    averages = weights(model)
    trained = plain_sgd(
        model, windows, gradient_of, after=lambda updates: move(averages, model, updates, settings)
    )
    return Trained(trained.weights, averages, trained.losses)


def move(averages: Named, model: nn.Module, updates: int, settings: dict[str, Any]) -> None:
    decay = settings["decay"]
    if settings["warmup"]:
        decay = min(decay, (1 + updates) / (10 + updates))
    for name, weight in model.named_parameters():
        averages[name] = decay * averages[name] + (1 - decay) * weight.detach()
