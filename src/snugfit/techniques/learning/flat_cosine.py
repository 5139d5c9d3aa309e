"""Linear warm-up, a flat part, then half a cosine down to zero."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Self

from snugfit.core.schedule import WarmedUp
from snugfit.core.technique import Card, Family


@dataclass(frozen=True)
class FlatCosine(WarmedUp):
    """Linear warm-up, a flat part, then half a cosine down to zero.

    >>> [round(FlatCosine(flat=0.5).factor(update, total_updates=4), 4) for update in range(4)]
    [1.0, 1.0, 1.0, 0.5]
    """

    flat: float = 0.75

    card: ClassVar[Card] = Card(
        name="flat_cosine",
        summary="Keeps the learning rate for most of the run, then lets it fall along half a cosine.",
        aliases=("fit_flat_cos", "flat and anneal"),
        family=Family.LEARNING,
        source="Howard & Gugger 2020, fastai's fit_flat_cos",
        seams=("schedule",),
        cost="none",
        use_when="long runs whose end may be moved: only the last part depends on it",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("flat", 0 <= self.flat < 1, "in [0, 1)")

    @classmethod
    def example(cls) -> Self:
        return cls(warmup=2, flat=0.25)

    def decay(self, done: float) -> float:
        return (
            1.0 if done <= self.flat else (1 + math.cos(math.pi * (done - self.flat) / (1 - self.flat))) / 2
        )
