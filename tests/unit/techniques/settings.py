"""What the tests of the techniques share."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn

from snugfit.core.selection import exclusion
from snugfit.core.technique import Context, Moment, Technique
from snugfit.errors import SettingError
from snugfit.techniques import discover

MOMENT = Moment(updates=0, windows=0, seed=0)


def refuses(technique: type[Technique], **setting: Any) -> None:
    """Check that the impossible value of one setting is refused with its full name and the value."""
    ((name, value),) = setting.items()
    expected = rf"^{technique.card.name}\.{name}: must be .+, found {re.escape(repr(value))}\.$"
    with pytest.raises(SettingError, match=expected):
        technique(**setting)


def optimizers_beside(technique: type[Technique]) -> list[Technique]:
    """An example of each optimizer that a run may have beside a technique."""
    others = (each for each in discover().values() if "optimizer" in each.card.seams)
    return [each.example() for each in others if exclusion(each.card, technique.card) is None]


def context(model: nn.Module | None = None, total_updates: int | None = None) -> Context:
    """What seams are made from."""
    return Context(model or nn.Linear(1, 1), torch.device("cpu"), total_updates)


def parameter(values: list[float], gradient: list[float] | None = None) -> nn.Parameter:
    """A float64 parameter with a gradient."""
    made = nn.Parameter(torch.tensor(values, dtype=torch.float64))
    made.grad = None if gradient is None else torch.tensor(gradient, dtype=torch.float64)
    return made
