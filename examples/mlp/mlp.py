"""Two spirals, told apart by a small network: the least that a recipe for your own code needs."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.utils.data import TensorDataset


def make_model(hidden: int = 64) -> nn.Module:
    """Return a perceptron from a point in the plane to two classes."""
    return nn.Sequential(
        nn.Linear(2, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 2)
    )


def make_spirals(count: int = 1000, turns: float = 1.5) -> TensorDataset:
    """Points on two spirals with a little noise, and which spiral each is on."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % 2
    radius = torch.rand(count, generator=generator).sqrt()
    angle = 2 * math.pi * turns * radius + math.pi * labels
    points = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)
    return TensorDataset(points + 0.02 * torch.randn(points.shape, generator=generator), labels)
