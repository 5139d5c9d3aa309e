"""The mean loss of the updates between two evaluations, which a resume does not shorten."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from snugfit.step.step import StepResult


@dataclass
class MeanLoss:
    """The mean loss of the updates since the last evaluation; it is kept in checkpoints, so that it is of those before a resume too."""

    total: float = 0.0
    updates: int = 0

    def add(self, result: StepResult) -> None:
        """Count an update; one that was refused is no part of what was learned."""
        if result.applied and math.isfinite(result.loss):
            self.total += result.loss
            self.updates += 1

    def taken(self) -> float | None:
        """Return the mean and begin anew; None where there was no update."""
        mean = self.total / self.updates if self.updates else None
        self.total, self.updates = 0.0, 0
        return mean

    def state(self) -> list[float]:
        """Return what a checkpoint keeps of it."""
        return [self.total, self.updates]

    def load(self, state: Sequence[float]) -> None:
        """Go on from what a checkpoint has kept."""
        self.total, self.updates = float(state[0]), int(state[1])
