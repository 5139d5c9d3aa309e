"""Schedules one after the other: at update n the part that began last has its own update `n − start`."""

from __future__ import annotations

from typing import Any

from torch import nn

from tests.oracles import constant, polynomial
from tests.oracles.loop import Trained, Window, gradient_of, plain_sgd


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    return plain_sgd(model, windows, gradient_of, lambda updates: factor(updates, total, settings))


def factor(updates: int, total: int, settings: dict[str, Any]) -> float:
    """A constant rate first, then polynomial decay over what is left of the run."""
    first, second = settings["parts"]
    (start,) = settings["at"]
    if updates < start:
        return constant.factor(updates, start, first)
    return polynomial.factor(updates - start, total - start, second)
