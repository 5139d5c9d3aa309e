"""Weights of 8 bits: Dettmers et al. 2022, arXiv:2208.07339, section 2.1, each row by its own largest; the rest trains by
plain SGD, and activations are whole."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.oracles.loop import Trained, Window
from tests.oracles.nf4 import quantised_layers, train_with_frozen

CHANGES_WEIGHTS = True
NEAR_FULL_PRECISION = 0.3  # of what is clipped or climbed by its norm: that of the frozen weights is missing


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    return train_with_frozen(model, windows, quantised_layers(model), rounded)


def rounded(weight: Tensor) -> Tensor:
    """`round(127 w / largest) * largest / 127`, from a weight in 16 bits, in float32."""
    rows = []
    for row in weight.detach().half().float():
        largest = row.abs().max()
        steps = [float(value) * 127 / float(largest) for value in row]
        rows.append(torch.tensor([float(round(step)) for step in steps]) * (largest / 127))
    return torch.stack(rows).to(weight.dtype)
