"""Warm-up, stable, decay: a constant rate that falls only at the end of the run."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from snugfit.core.progress import LENGTH, is_length, number_of_updates
from snugfit.core.schedule import WarmedUp, warmup_factor
from snugfit.core.technique import Card, Family


@dataclass(frozen=True)
class WSD(WarmedUp):
    """Linear warm-up, a constant rate, then a cool-down to `minimum` of it at the end of the run.

    >>> [WSD(cooldown=0.5, shape="linear").factor(update, total_updates=4) for update in range(5)]
    [1.0, 1.0, 1.0, 0.5, 0.0]
    """

    cooldown: float = 0.2
    shape: Literal["1-sqrt", "linear"] = "1-sqrt"
    minimum: float = 0.0

    card: ClassVar[Card] = Card(
        name="wsd",
        summary="Keeps the learning rate after warm-up, and lets it fall over the last part of the run only.",
        aliases=("warmup-stable-decay", "trapezoidal schedule", "infinite schedule"),
        family=Family.LEARNING,
        source="Hu et al. 2024 (MiniCPM), arXiv:2404.06395; 1-sqrt: Hägele et al. 2024, arXiv:2405.18392",
        seams=("schedule",),
        cost="none",
        use_when="pretraining whose length is not settled: a run can be prolonged from before its cool-down",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("cooldown", is_length(self.cooldown), LENGTH)
        self.require("shape", self.shape in ("1-sqrt", "linear"), "1-sqrt or linear")
        self.require("minimum", 0 <= self.minimum <= 1, "in [0, 1]")

    @classmethod
    def example(cls) -> Self:
        return cls(warmup=2, cooldown=0.5, minimum=0.1)

    def factor(self, updates: int, total_updates: int) -> float:
        warmup = number_of_updates(self.warmup, total_updates)
        start = max(warmup, total_updates - number_of_updates(self.cooldown, total_updates))
        if updates <= start or self.cooldown == 0:
            return warmup_factor(updates, warmup)
        done = min(1.0, (updates - start) / max(1, total_updates - start))
        fallen = done if self.shape == "linear" else math.sqrt(done)
        return 1.0 - (1.0 - self.minimum) * fallen
