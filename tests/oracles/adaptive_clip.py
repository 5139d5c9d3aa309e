"""Adaptive gradient clipping: Brock et al. 2021, arXiv:2102.06171, equation 3 with unit-wise norms, without the last layer."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor, nn

from tests.oracles.loop import Named, Trained, Window, gradient_of, plain_sgd

HEAD = ("head.bias", "tokens.weight")  # the head's weight is the embedding's


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    """`G_i ← λ·‖W_i‖*/‖G_i‖·G_i` if `‖G_i‖/‖W_i‖* > λ`, with `‖W_i‖* = max(‖W_i‖, ε)`, for each row `i`."""

    def direction(model: nn.Module, window: Window) -> tuple[Named, float]:
        gradient, loss = gradient_of(model, window)
        for name, weight in model.named_parameters():
            if name not in gradient or name in HEAD:
                continue
            # a bias is one unit
            pairs = (
                zip(weight, gradient[name], strict=True) if weight.ndim > 1 else [(weight, gradient[name])]
            )
            for weights, unit in pairs:
                bound = settings["factor"] * max(length(weights), settings["epsilon"])
                if length(unit) > bound:
                    unit *= bound / length(unit)
        return gradient, loss

    return plain_sgd(model, windows, direction)


def length(vector: Tensor) -> float:
    return math.sqrt(sum(value**2 for value in vector.flatten().tolist()))
