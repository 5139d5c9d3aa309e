"""Online hard example mining: Shrivastava et al. 2016, arXiv:1604.03540, section 4."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from tests.oracles.loop import Named, Trained, Window, gradient_of, plain_sgd, row_losses, take


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    """Forward all rows, sort them by their loss, and take the gradient of the hardest `⌈fraction · rows⌉` alone."""

    def direction(model: nn.Module, window: Window) -> tuple[Named, float]:
        return gradient_of(model, take(window, hardest(*row_losses(model, window), settings["fraction"])))

    return plain_sgd(model, windows, direction)


def hardest(losses: list[Tensor], counts: list[int], fraction: float) -> list[int]:
    """A row's loss is the mean over its labels; rows without any come last."""
    with torch.no_grad():
        means = [
            float(loss) / count if count else -math.inf for loss, count in zip(losses, counts, strict=True)
        ]
    order = sorted(range(len(means)), key=lambda row: -means[row])
    return sorted(order[: math.ceil(fraction * len(means))])
