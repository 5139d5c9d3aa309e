"""A schedule for each parameter, by its name: `w ← w − η·f_name(n)·g`."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from tests.oracles import constant, polynomial
from tests.oracles.loop import Trained, Window
from tests.oracles.pattern_rates import sgd_by_name


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    return sgd_by_name(model, windows, lambda updates, name: factor(updates, total, settings, name))


def factor(updates: int, total: int, settings: dict[str, Any], name: str = "") -> float:
    """Polynomial decay where the one pattern matches, a constant rate elsewhere."""
    ((pattern, schedule),) = settings["schedules"].items()
    if fnmatchcase(name, pattern):
        return polynomial.factor(updates, total, schedule)
    return constant.factor(updates, total, settings["default"])
