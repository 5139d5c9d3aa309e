"""Linear warm-up, then half a cosine down to `minimum` of the rate."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Self

from snugfit.core.schedule import WarmedUp
from snugfit.core.technique import Card, Family


@dataclass(frozen=True)
class Cosine(WarmedUp):
    """Linear warm-up, then half a cosine down to `minimum` of the rate.

    >>> [round(Cosine().factor(update, total_updates=4), 4) for update in range(4)]
    [1.0, 0.8536, 0.5, 0.1464]
    """

    minimum: float = 0.0

    card: ClassVar[Card] = Card(
        name="cosine",
        summary="Lets the learning rate fall along half a cosine.",
        aliases=("cosine annealing", "CosineAnnealingLR"),
        family=Family.LEARNING,
        source="Loshchilov & Hutter 2017, arXiv:1608.03983, without restarts; torch's CosineAnnealingLR",
        seams=("schedule",),
        cost="none",
        use_when="training from scratch; minimum 0.1 is usual for language models",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("minimum", 0 <= self.minimum <= 1, "in [0, 1]")

    @classmethod
    def example(cls) -> Self:
        return cls(warmup=2, minimum=0.1)

    def decay(self, done: float) -> float:
        return self.minimum + (1 - self.minimum) * (1 + math.cos(math.pi * done)) / 2
