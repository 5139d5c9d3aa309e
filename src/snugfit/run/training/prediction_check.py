"""A plan's prediction, beside what the run measures: time once the run is warm, memory when it is over."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from statistics import median
from typing import Any

import torch

from snugfit.system.memory import peak_memory_bytes

WARM = 5
"""Updates that are left out: kernels are chosen in them, pages touched for the first time, the tracker's libraries loaded beside them."""

LOOKED_AT = 15
"""Updates after those, whose median is told while the run goes on."""

_MOST = 1000
"""Updates whose median is told at the end: the last ones."""


class PredictionCheck:
    """A prediction that is compared twice: its seconds once the run is warm, and all of it at the end of the run.

    Memory grows until then, by evaluations and checkpoints, which the prediction counts too.

    Args:
        predicted: `peak_bytes` and `seconds_per_update`; what is missing is not compared.
    """

    def __init__(self, predicted: Mapping[str, Any], device: torch.device) -> None:
        self.predicted = predicted
        self._device = device
        self._updates = 0
        self._first: list[float] = []
        self._warm: deque[float] = deque(maxlen=_MOST)

    def after_update(self, seconds: float) -> dict[str, Any] | None:
        """Count an update of so many seconds; return the median of the warm ones, once, as soon as there are enough."""
        self._updates += 1
        if self._updates <= WARM:
            self._first.append(seconds)
            return None
        self._warm.append(seconds)
        return {"seconds_per_update": median(self._warm)} if self._updates == WARM + LOOKED_AT else None

    def at_end(self) -> dict[str, Any]:
        """Return the peak of the memory, and the median of the warm updates, or of a run that was too short for any of its last."""
        measured: dict[str, Any] = {}
        if timed := self._warm or self._first[-1:]:
            measured["seconds_per_update"] = median(timed)
        if "peak_bytes" in self.predicted:
            measured["peak_bytes"] = peak_memory_bytes(self._device)
        return measured
