"""Quantisation-aware training: Jacob et al. 2018, arXiv:1712.05877, with the straight-through gradient of arXiv:1308.3432.

Every linear layer that is called computes with rounded weights and inputs, one group and one token after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.oracles.loop import Trained, Window, gradient_of, plain_sgd

NEAR_FULL_PRECISION = 0.5  # 4 bits


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    bits = 4 if settings["weights"] == "int4" else 8
    with rounding(model, bits, settings["group_size"], settings["activations"]):
        return plain_sgd(model, windows, gradient_of)


@contextmanager
def rounding(model: nn.Module, bits: int, group: int, activations: str | None) -> Iterator[None]:
    """A layer that shares its weight, such as a head with an embedding, stays as it is, and so does one that groups do not divide."""
    original = nn.Linear.forward
    held = [id(weight) for module in model.modules() for weight in module.parameters(recurse=False)]

    def forward(layer: nn.Linear, inputs: Tensor) -> Tensor:
        if layer.in_features % group or held.count(id(layer.weight)) > 1:
            return original(layer, inputs)
        weight = torch.stack(
            [torch.cat([symmetric(part, bits) for part in row.split(group)]) for row in layer.weight]
        )
        if activations is not None:
            tokens = inputs.reshape(-1, inputs.shape[-1])
            inputs = torch.stack([asymmetric(token) for token in tokens]).view(inputs.shape)
        return F.linear(inputs, weight, layer.bias)

    nn.Linear.forward = forward  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Linear.forward = original  # type: ignore[method-assign]


def symmetric(values: Tensor, bits: int) -> Tensor:
    """`s·round(w/s)` with the smallest `s` for which the grid from `−2^(b−1)` to `2^(b−1)−1` holds all values."""
    scale = max(-values.detach().min() / 2 ** (bits - 1), values.detach().max() / (2 ** (bits - 1) - 1))
    return straight(values, (values.detach() / scale).round() * scale)


def asymmetric(values: Tensor) -> Tensor:
    """256 steps between the smallest and the largest, 0 among them."""
    low, high = values.detach().min().clamp(max=0), values.detach().max().clamp(min=0)
    scale = (high - low) / 255
    zero = (-128 - (low / scale).round()).clamp(-128, 127)
    steps = ((values.detach() / scale).round() + zero).clamp(-128, 127)
    return straight(values, (steps - zero) * scale)


def straight(values: Tensor, rounded: Tensor) -> Tensor:
    """The rounded values, with the gradient of the identity."""
    return values + (rounded - values).detach()
