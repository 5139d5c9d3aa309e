"""Freezing: a frozen weight does not move. Its statistics: the model has none; see the unit tests."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from tests.oracles.loop import Named, Trained, Window, gradient_of, plain_sgd


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    """`w ← w − ηg` for the weights that no pattern matches, and for all of them after `updates` updates."""
    done = 0

    def direction(model: nn.Module, window: Window) -> tuple[Named, float]:
        nonlocal done
        gradient, loss = gradient_of(model, window)
        if done < settings["updates"]:
            gradient = {
                name: g
                for name, g in gradient.items()
                if not any(fnmatchcase(name, pattern) for pattern in settings["patterns"])
            }
        done += 1
        return gradient, loss

    return plain_sgd(model, windows, direction)
