"""What a run is watched for: the best evaluation, no more improvement, and numbers that are not finite."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from snugfit.core.job import Job
from snugfit.errors import SettingError, nearest

_HIGHER = ("accuracy", "macro_f1", "f1", "precision", "recall", "auroc", "r2")
_LOWER = ("loss", "perplexity", "mse", "mae", "rmse")


def monitored(best: str, known: Iterable[str]) -> tuple[str, bool]:
    """The metric that decides which weights are best, and whether higher is better.

    >>> monitored("accuracy", ["accuracy"]), monitored("min:my_error", ["my_error"])
    (('accuracy', True), ('my_error', False))

    Raises:
        SettingError: the metric is not evaluated, or its direction is not known.
    """
    direction, _, name = best.rpartition(":")
    names = ["loss", *known]
    if name not in names:
        raise SettingError(
            f"evaluate.best: '{name}' is not among the evaluated metrics. {nearest(name, names)}"
        )
    if direction in ("min", "max"):
        return name, direction == "max"
    if not direction and name in (*_HIGHER, *_LOWER):
        return name, name in _HIGHER
    raise SettingError(
        f"evaluate.best: whether a high or a low '{name}' is better is not known. Write 'max:{name}' or 'min:{name}'."
    )


@dataclass
class Watch:
    """The best evaluation so far and the evaluations since, and the windows that failed; part of every checkpoint.

    `banned` are the windows (counted from 1) because of which the run went back, and why; `refused_in_a_row` counts
    windows that were not finite since the last that was.
    """

    best_update: int | None = None
    best_metrics: dict[str, float] = field(default_factory=dict)
    evaluations_since_best: int = 0
    banned: dict[int, str] = field(default_factory=dict)
    refused_in_a_row: int = 0

    def observe(self, update: int, metrics: Mapping[str, float], monitor: tuple[str, bool]) -> bool:
        """Take in an evaluation; whether it is the best so far. NaN is never better."""
        name, higher = monitor
        value = metrics[name]
        best = self.best_metrics.get(name)
        better = not math.isnan(value) and (
            best is None or math.isnan(best) or (value > best if higher else value < best)
        )
        # something must be saved, whatever the first evaluation says
        if better or self.best_update is None:
            self.best_update, self.best_metrics = update, dict(metrics)
            self.evaluations_since_best = 0
            return True
        self.evaluations_since_best += 1
        return False

    def exhausted(self, job: Job) -> str | None:
        """Why the run should stop early, or None."""
        if job.patience is None or self.evaluations_since_best < job.patience:
            return None
        return (
            f"early stopping: {job.best} has not improved for {self.evaluations_since_best} evaluations; best at "
            f"update {self.best_update}"
        )

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)
