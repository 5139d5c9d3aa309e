"""Gradual unfreezing: Howard & Ruder 2018, arXiv:1801.06146, section 3.3: from the last layer on, one more each time."""

from __future__ import annotations

from typing import Any

from torch import nn

from tests.oracles.loop import Named, Trained, Window, gradient_of, plain_sgd

# the children of the model from the head down; the head's weight is that of the token embeddings
ORDER = [("head.", "tokens."), ("unused.",), ("block.",), ("mix.",), ("places.",)]


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    """`w ← w − ηg` for the weights of the first `1 + (updates so far) / every` layers from the head down."""
    done = 0

    def direction(model: nn.Module, window: Window) -> tuple[Named, float]:
        nonlocal done
        trained = tuple(prefix for layer in ORDER[: 1 + done // int(settings["every"])] for prefix in layer)
        gradient, loss = gradient_of(model, window)
        done += 1
        return {name: g for name, g in gradient.items() if name.startswith(trained)}, loss

    return plain_sgd(model, windows, direction)
