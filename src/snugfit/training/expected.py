"""What a plan predicted, beside what the run measures in its first updates."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

import torch

from snugfit.core.memory import peak_memory_bytes

WARM, LOOKED_AT = 1, 5
"""Updates that are left out, as kernels are chosen in them, and those whose median counts."""


class Expected:
    """Compares a prediction with the first updates of a run, once.

    Args:
        predicted: `peak_bytes` and `seconds_per_update`.
    """

    def __init__(self, predicted: Mapping[str, Any], device: torch.device) -> None:
        self.predicted = predicted
        self._device = device
        self._seconds: list[float] = []

    def measured(self, seconds: float, last: bool = False) -> dict[str, Any] | None:
        """After an update of so many seconds: what was measured, as soon as there is enough of it, or at the end of the run."""
        self._seconds.append(seconds)
        count = len(self._seconds)
        if count != WARM + LOOKED_AT and not (last and count < WARM + LOOKED_AT):
            return None
        timed = self._seconds[WARM:] or self._seconds
        return {"peak_bytes": peak_memory_bytes(self._device), "seconds_per_update": median(timed)}
