"""Lower the learning rate when a metric of the evaluations no longer improves."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from snugfit.core.progress import LENGTH, is_length, number_of_updates
from snugfit.core.schedule import known_total, warmup_factor
from snugfit.core.technique import Card, Context, Family, Rate, Seams, Technique
from snugfit.errors import SettingError, nearest
from snugfit.kit.metric_directions import name_and_direction


@dataclass(frozen=True)
class Plateau(Technique):
    """Multiply the rate by `factor` once `metric` has not improved for more than `patience` evaluations."""

    metric: str = "loss"
    factor: float = 0.1
    patience: int = 10
    threshold: float = 1e-4
    relative: bool = True
    cooldown: int = 0
    minimum: float = 0.0
    warmup: float = 0.0

    card: ClassVar[Card] = Card(
        name="plateau",
        summary="Lowers the learning rate when a metric of the evaluations no longer improves.",
        aliases=("ReduceLROnPlateau",),
        family=Family.LEARNING,
        source="folklore; torch's ReduceLROnPlateau",
        seams=("schedule", "evaluated"),
        cost="none beside the evaluations",
        use_when="the length of the run is open and the evaluations are frequent",
    )

    def __post_init__(self) -> None:
        name_and_direction("plateau.metric", self.metric)
        self.require("factor", 0 < self.factor < 1, "between 0 and 1")
        self.require("patience", self.patience >= 0, "zero or positive")
        self.require_not_negative("threshold")
        self.require("cooldown", self.cooldown >= 0, "zero or positive")
        self.require("minimum", 0 <= self.minimum <= 1, "in [0, 1]")
        self.require("warmup", is_length(self.warmup), LENGTH)

    @classmethod
    def example(cls) -> Self:
        return cls(patience=0, warmup=2)

    def metrics(self) -> tuple[str, ...]:
        return (name_and_direction("plateau.metric", self.metric)[0],)

    def seams(self, context: Context) -> Seams:
        total = known_total(self.card.name, context, needed=0 < self.warmup < 1)
        warmup = number_of_updates(self.warmup, total)
        reductions = Reductions(self)

        def schedule(updates: int, _group: Mapping[str, Any]) -> Rate:
            return Rate(warmup_factor(updates, warmup) * reductions.factor)

        return Seams(schedule=schedule, evaluated=reductions.evaluated, state=reductions)


class Reductions:
    """The reductions of the rate by the evaluations so far, as torch's ReduceLROnPlateau counts; `factor` is the outcome.

    >>> reductions = Reductions(Plateau(factor=0.5, patience=1))
    >>> for loss in (1.0, 0.5, 0.5, 0.5):
    ...     reductions.evaluated({"loss": loss})
    >>> reductions.factor
    0.5
    """

    def __init__(self, settings: Plateau) -> None:
        self._settings = settings
        self._name, self._higher = name_and_direction("plateau.metric", settings.metric)
        self.factor = 1.0
        self._best = -math.inf if self._higher else math.inf
        self._bad = 0
        self._cooldown = 0

    def evaluated(self, metrics: Mapping[str, float]) -> None:
        """Take in an evaluation.

        Raises:
            SettingError: it does not have the metric.
        """
        if self._name not in metrics:
            raise SettingError(
                "plateau.metric", f"'{self._name}' was not evaluated", nearest(self._name, metrics)
            )
        value = metrics[self._name]
        if self._is_better(value):
            self._best, self._bad = value, 0
        else:  # also what is not a number
            self._bad += 1
        if self._cooldown > 0:
            self._cooldown -= 1
            self._bad = 0
        if self._bad > self._settings.patience:
            self.factor = max(self.factor * self._settings.factor, self._settings.minimum)
            self._bad, self._cooldown = 0, self._settings.cooldown

    def _is_better(self, value: float) -> bool:
        change = self._settings.threshold if self._higher else -self._settings.threshold
        bound = self._best * (1.0 + change) if self._settings.relative else self._best + change
        return value > bound if self._higher else value < bound

    def state_dict(self) -> dict[str, Any]:
        return {"factor": self.factor, "best": self._best, "bad": self._bad, "cooldown": self._cooldown}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.factor, self._best = state["factor"], state["best"]
        self._bad, self._cooldown = state["bad"], state["cooldown"]
