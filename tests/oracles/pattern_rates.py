"""A learning rate for each parameter, by its name: `w ← w − η·r(name)·g`."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from tests.oracles.loop import LEARNING_RATE, Trained, Window, gradient_of, weights


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    return sgd_by_name(model, windows, lambda updates, name: rate(name, settings))


def rate(name: str, settings: dict[str, Any]) -> float:
    """The factor of the first pattern that matches, else 1."""
    for pattern, factor in settings["rates"].items():
        if fnmatchcase(name, pattern):
            return float(factor)
    return 1.0


def sgd_by_name(model: nn.Module, windows: list[Window], factor: Callable[[int, str], float]) -> Trained:
    """Plain gradient descent in which each parameter has a factor of its own at each update."""
    losses = []
    for updates, window in enumerate(windows):
        gradient, loss = gradient_of(model, window)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if name in gradient:
                    weight -= LEARNING_RATE * factor(updates, name) * gradient[name]
        losses.append(loss)
    return Trained(weights(model), weights(model), losses)
