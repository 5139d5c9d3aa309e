"""Constant learning rate after linear warm-up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from snugfit.core.schedule import WarmedUp
from snugfit.core.technique import Card, Family


@dataclass(frozen=True)
class Constant(WarmedUp):
    """Constant learning rate after linear warm-up.

    >>> [Constant(warmup=2).factor(update, total_updates=4) for update in range(4)]
    [0.5, 1.0, 1.0, 1.0]
    """

    card: ClassVar[Card] = Card(
        name="constant",
        summary="Keeps the learning rate, after an optional warm-up.",
        aliases=("constant_with_warmup", "ConstantLR"),
        family=Family.LEARNING,
        source="folklore",
        seams=("schedule",),
        cost="none",
        use_when="the length of the run is not known, or an average of the weights does the annealing",
    )

    def decay(self, done: float) -> float:
        return 1.0

    def needs_total(self) -> bool:
        return 0 < self.warmup < 1
