"""Linear warm-up, then a power of what is left of the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from snugfit.core.schedule import WarmedUp
from snugfit.core.technique import Card, Family


@dataclass(frozen=True)
class Polynomial(WarmedUp):
    """Linear warm-up, then `power` of the part of the run that is left, down to `minimum` of the rate.

    >>> [Polynomial(power=2.0).factor(update, total_updates=4) for update in range(5)]
    [1.0, 0.5625, 0.25, 0.0625, 0.0]
    """

    power: float = 2.0
    minimum: float = 0.0

    card: ClassVar[Card] = Card(
        name="polynomial",
        summary="Lets the learning rate fall as a power of what is left of the run.",
        aliases=("PolynomialLR",),
        family=Family.LEARNING,
        source="Chen et al. 2016 (DeepLab), arXiv:1606.00915; torch's PolynomialLR",
        seams=("schedule",),
        cost="none",
        use_when="semantic segmentation with power 0.9, large batches with power 2; power 1 is a straight line",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_positive("power")
        self.require("minimum", 0 <= self.minimum <= 1, "in [0, 1]")

    @classmethod
    def example(cls) -> Self:
        return cls(warmup=2, power=2.0, minimum=0.1)

    def decay(self, done: float) -> float:
        left: float = (1.0 - done) ** self.power
        return self.minimum + (1.0 - self.minimum) * left
