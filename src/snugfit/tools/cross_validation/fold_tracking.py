"""A cross-validation in the tracker: one run, under which those of the folds are shown."""

from __future__ import annotations

import math

from snugfit.tools.cross_validation.result import CrossValidation
from snugfit.tools.many_runs import TrackedRuns


class TrackedFolds(TrackedRuns):
    """Events of a cross-validation."""

    def folds(self, found: CrossValidation) -> None:
        """Say mean and spread of the folds finished so far."""
        spread = found.summary.spread
        self.say(
            "folds",
            update=len(found.scores),
            mean=dict(found.summary.mean),
            deviation={
                name: each.deviation for name, each in spread.items() if math.isfinite(each.deviation)
            },
            corrected_error={
                name: each.corrected_error
                for name, each in spread.items()
                if math.isfinite(each.corrected_error)
            },
        )
