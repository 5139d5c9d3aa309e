"""Polynomial decay, the "poly" policy: Chen et al. 2016, arXiv:1606.00915, section 4.1."""

from __future__ import annotations

from typing import Any

from torch import nn

from tests.oracles.constant import rise, warmup
from tests.oracles.loop import Trained, Window, gradient_of, plain_sgd


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    return plain_sgd(model, windows, gradient_of, lambda updates: factor(updates, total, settings))


def factor(updates: int, total: int, settings: dict[str, Any]) -> float:
    """`(1 − n/N)^power`, here between 1 and the minimum."""
    start = warmup(total, settings)
    if updates < start:
        return rise(updates, start)
    falling = (1 - (updates - start) / (total - start)) ** settings["power"]
    return settings["minimum"] + (1 - settings["minimum"]) * falling
