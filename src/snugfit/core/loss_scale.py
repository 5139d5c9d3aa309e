"""Dynamic loss scaling: gradients in a 16-bit format stay in its range because the loss is multiplied."""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass
from typing import Any

SMALLEST = 1.0
"""A window that is not finite at this scale or below is not so because of the scale: the gradients themselves do not fit."""


@dataclass
class LossScale:
    """The factor of the loss: halved when a window is not finite, doubled after `growth_interval` windows that are.

    The same scales as `torch.amp.GradScaler`, whose defaults these are, in float32 as there: growth beyond its range is
    refused. It differs in where it stands: the step unscales the gradients of the whole window before anything looks at
    them, and says once whether they are finite, so that it serves techniques that compute gradients twice. An empty window
    leaves it alone.

    >>> scale = LossScale(factor=8.0, growth_interval=2)
    >>> for finite in (False, True, True):
    ...     scale.update(finite)
    ...     print(scale.factor)
    4.0
    4.0
    8.0

    Source: Micikevicius et al. 2018, arXiv:1710.03740.
    """

    factor: float = 65536.0
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    finite_in_a_row: int = 0

    def __post_init__(self) -> None:
        self.factor = ctypes.c_float(self.factor).value

    def update(self, finite: bool) -> None:
        """Take in whether the gradients of a window were finite."""
        if not finite:
            self.factor = ctypes.c_float(self.factor * self.backoff_factor).value
            self.finite_in_a_row = 0
            return
        self.finite_in_a_row += 1
        if self.finite_in_a_row == self.growth_interval:
            grown = ctypes.c_float(self.factor * self.growth_factor).value
            self.factor = grown if math.isfinite(grown) else self.factor
            self.finite_in_a_row = 0

    def state_dict(self) -> dict[str, Any]:
        return {"factor": self.factor, "finite_in_a_row": self.finite_in_a_row}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.factor, self.finite_in_a_row = state["factor"], state["finite_in_a_row"]
