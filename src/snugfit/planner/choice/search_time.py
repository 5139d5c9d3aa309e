"""The seconds that an answer's searches may take together, where it is made of several."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

_LEAST = 1e-3
"""Seconds of a search for which none are left: it predicts the recipe's own plan alone."""


@dataclass(frozen=True)
class SearchTime:
    """Seconds that were given to several searches, from `started` on; None for no bound."""

    seconds: float | None
    started: float = field(default_factory=time.monotonic)

    def part(self, share: float = 1.0) -> float | None:
        """Return this share of the seconds that are left."""
        if self.seconds is None:
            return None
        return max(_LEAST, share * (self.started + self.seconds - time.monotonic()))
