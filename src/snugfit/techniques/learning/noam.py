"""The schedule of the first transformer: linear warm-up, then 1 / sqrt(updates), all over the square root of its width."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from snugfit.core.schedule import Schedule
from snugfit.core.technique import Card, Context, Family, Rate, Seams
from snugfit.errors import SettingError

_LOWEST_PEAK = 1e-6


def noam_rate(number: int, dim: int, warmup: int) -> float:
    """Return the learning rate of update `number`, counted from 1: Vaswani et al. 2017, arXiv:1706.03762, equation 3.

    >>> round(noam_rate(4000, dim=512, warmup=4000), 6)
    0.000699
    """
    return min(1 / math.sqrt(number), number / (warmup * math.sqrt(warmup))) / math.sqrt(dim)


@dataclass(frozen=True)
class Noam(Schedule):
    """`dim^-0.5 · min(n^-0.5, n · warmup^-1.5)` for update number n: the rate itself, for an optimizer at 1.0.

    >>> [round(Noam(dim=64, warmup=4).factor(update, total_updates=0), 4) for update in (0, 3, 15)]
    [0.0156, 0.0625, 0.0312]
    """

    dim: int = 512
    warmup: int = 4000

    card: ClassVar[Card] = Card(
        name="noam",
        summary="The first transformer's learning rate, by its width and warm-up; the optimizer's own is a factor, 1.0.",
        family=Family.LEARNING,
        source="Vaswani et al. 2017, arXiv:1706.03762, section 5.3",
        seams=("schedule",),
        cost="none",
        use_when="repeating a published setting: Adam at learning_rate 1.0, beta2 0.98; else inverse_sqrt, whose peak you give",
    )

    def __post_init__(self) -> None:
        self.require("dim", self.dim >= 1, "at least 1")
        self.require("warmup", self.warmup >= 1, "at least 1 update")

    @classmethod
    def example(cls) -> Self:
        return cls(dim=4, warmup=2)

    def factor(self, updates: int, total_updates: int) -> float:
        return noam_rate(updates + 1, self.dim, self.warmup)

    def needs_total(self) -> bool:
        return False

    def sets_scale(self) -> bool:
        return True

    def seams(self, context: Context) -> Seams:
        peak = noam_rate(self.warmup, self.dim, self.warmup)

        def schedule(updates: int, group: Mapping[str, Any]) -> Rate:
            given = group["initial_lr"] / group.get("lr_factor", 1.0)
            if given * peak < _LOWEST_PEAK:  # a rate that was meant to be the peak: nothing would be learned
                raise SettingError(
                    "noam",
                    f"with the optimizer's learning_rate {given:.3g}, the highest rate of the run would be "
                    f"{given * peak:.2g}",
                    "Give learning_rate 1.0, as the paper has it, or the peak itself with inverse_sqrt.",
                )
            return Rate(self.factor(updates, 0))

        return Seams(schedule=schedule)
