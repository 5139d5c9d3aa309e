"""Annealed gradient noise: Neelakantan et al. 2015, arXiv:1511.06807, equation 1.

The noise is of the run's seed, the technique and the window: what a run promises about its draws, written down once more.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

import torch
from torch import nn

from tests.oracles.loop import Named, Trained, Window, gradient_of, plain_sgd

SEED = 0


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    """`g ← g + N(0, σ²)` with `σ² = η / (1 + t)^γ`, independent for each element."""
    updates = 0

    def direction(model: nn.Module, window: Window) -> tuple[Named, float]:
        nonlocal updates
        gradient, loss = gradient_of(model, window)
        deviation = math.sqrt(settings["eta"] / (1 + updates) ** settings["gamma"])
        source = torch.Generator().manual_seed(seed_of(updates))
        noisy = {
            name: gradient[name] + deviation * torch.randn(weight.shape, generator=source, dtype=weight.dtype)
            for name, weight in model.named_parameters()
            if name in gradient
        }
        updates += 1
        return noisy, loss

    return plain_sgd(model, windows, direction)


def seed_of(window: int) -> int:
    named = repr((SEED, "adjust", "gradient_noise", window)).encode()
    return int.from_bytes(hashlib.blake2b(named, digest_size=8).digest(), "little") >> 1
