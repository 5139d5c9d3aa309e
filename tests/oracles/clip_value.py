"""Clipping by value: Mikolov 2012, Statistical language models based on neural networks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.oracles.loop import Named, Trained, Window, gradient_of, plain_sgd


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    """`g_i ← min(max(g_i, −c), c)`, element by element."""

    def direction(model: nn.Module, window: Window) -> tuple[Named, float]:
        gradient, loss = gradient_of(model, window)
        return {name: clipped(g, settings["max_value"]) for name, g in gradient.items()}, loss

    return plain_sgd(model, windows, direction)


def clipped(gradient: Tensor, bound: float) -> Tensor:
    values = [min(max(value, -bound), bound) for value in gradient.flatten().tolist()]
    return torch.tensor(values, dtype=gradient.dtype).reshape(gradient.shape)
