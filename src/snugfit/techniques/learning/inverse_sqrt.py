"""Linear warm-up, then one over the square root of the number of updates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from snugfit.core.progress import number_of_updates
from snugfit.core.schedule import WarmedUp, warmup_factor
from snugfit.core.technique import Card, Family

_WITHOUT_WARMUP = 10_000


@dataclass(frozen=True)
class InverseSqrt(WarmedUp):
    """Linear warm-up to the optimizer's rate, then 1 / sqrt(updates); the length of the run does not matter.

    >>> [round(InverseSqrt(warmup=4).factor(update, total_updates=0), 4) for update in (0, 3, 15, 63)]
    [0.25, 1.0, 0.5, 0.25]
    """

    timescale: int | None = None

    card: ClassVar[Card] = Card(
        name="inverse_sqrt",
        summary="Lets the learning rate fall with the square root of the updates, however long the run becomes.",
        family=Family.LEARNING,
        source="Vaswani et al. 2017, arXiv:1706.03762, by its peak as in fairseq; transformers' get_inverse_sqrt_schedule",
        seams=("schedule",),
        cost="none",
        use_when="transformers from scratch for an open number of updates; learning_rate is the peak",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("timescale", self.timescale is None or self.timescale >= 1, "at least 1, or null")

    def factor(self, updates: int, total_updates: int) -> float:
        warmup = number_of_updates(self.warmup, total_updates)
        if updates < warmup:
            return warmup_factor(updates, warmup)
        timescale = self.timescale or warmup or _WITHOUT_WARMUP
        return 1.0 / math.sqrt((updates + 1 - warmup + timescale) / timescale)

    def needs_total(self) -> bool:
        return 0 < self.warmup < 1
