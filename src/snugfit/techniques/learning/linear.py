"""Linear warm-up, then linear decay to zero at the end of the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from snugfit.core.schedule import WarmedUp
from snugfit.core.technique import Card, Family


@dataclass(frozen=True)
class Linear(WarmedUp):
    """Linear warm-up, then linear decay to zero at the end of the run.

    >>> [Linear().factor(update, total_updates=4) for update in range(4)]
    [1.0, 0.75, 0.5, 0.25]
    """

    card: ClassVar[Card] = Card(
        name="linear",
        summary="Lets the learning rate fall in a straight line to zero.",
        aliases=("LinearLR", "linear warm-up and decay"),
        family=Family.LEARNING,
        source="Devlin et al. 2018, arXiv:1810.04805; transformers' get_linear_schedule_with_warmup",
        seams=("schedule",),
        cost="none",
        use_when="fine-tuning transformers; warm-up 0.06 to 0.1 of the run",
    )

    def decay(self, done: float) -> float:
        return 1.0 - done
