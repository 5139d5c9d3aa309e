"""A cycle of the rate, up and far down again, with the momentum going the other way."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Literal, Self

from snugfit.core.schedule import Schedule
from snugfit.core.technique import Card, Family, Rate


def anneal(start: float, end: float, done: float, shape: str) -> float:
    """Return the value between `start` and `end` when the part `done` is behind, along half a cosine or a straight line.

    >>> anneal(1.0, 0.0, 0.5, "cos"), anneal(1.0, 0.0, 0.25, "linear")
    (0.5, 0.75)
    """
    return (
        end + (start - end) / 2 * (1 + math.cos(math.pi * done))
        if shape == "cos"
        else start + (end - start) * done
    )


@dataclass(frozen=True)
class OneCycle(Schedule):
    """Raise the rate from 1 / `div_factor` of it to all of it, then lower it to `final_div_factor` times less than at the start.

    >>> schedule = OneCycle(rise=0.5, div_factor=4, final_div_factor=1, anneal="linear")
    >>> [round(schedule.factor(update, total_updates=6), 3) for update in range(6)]
    [0.25, 0.625, 1.0, 0.75, 0.5, 0.25]
    """

    rise: float = 0.3
    div_factor: float = 25.0
    final_div_factor: float = 1e4
    anneal: Literal["cos", "linear"] = "cos"
    momentum: tuple[float, float] | None = (0.85, 0.95)
    three_phase: bool = False

    card: ClassVar[Card] = Card(
        name="one_cycle",
        summary="Lets the learning rate rise and fall once, far below its start, while the momentum goes the other way.",
        aliases=("OneCycleLR", "fit_one_cycle", "super-convergence"),
        family=Family.LEARNING,
        source="Smith & Topin 2018, arXiv:1708.07120; Smith 2018, arXiv:1803.09820; torch's OneCycleLR",
        seams=("schedule",),
        cost="none",
        use_when="convolutional nets in few epochs, with a peak rate found by trial",
    )

    def __post_init__(self) -> None:
        most = 0.5 if self.three_phase else 1.0
        self.require(
            "rise",
            0 < self.rise < most,
            f"between 0 and {most}, {'half' * self.three_phase or 'all'} of the run",
        )
        self.require("div_factor", 1 <= self.div_factor < math.inf, "at least 1")
        self.require("final_div_factor", 1 <= self.final_div_factor < math.inf, "at least 1")
        self.require("anneal", self.anneal in ("cos", "linear"), "cos or linear")
        momentum = self.momentum
        possible = momentum is None or (len(momentum) == 2 and 0 < momentum[0] <= momentum[1] < 1)
        # at exactly 0 torch's SGD and RMSprop keep no average to go on from
        self.require("momentum", possible, "the lowest and the highest, in (0, 1), or null to leave it")

    @classmethod
    def example(cls) -> Self:
        return cls(rise=0.4, div_factor=5.0, final_div_factor=10.0, momentum=(0.5, 0.8))

    def factor(self, updates: int, total_updates: int) -> float:
        first = 1 / self.div_factor
        last = first / self.final_div_factor
        return self._along([first, 1.0, *([first] if self.three_phase else []), last], updates, total_updates)

    def rate(self, updates: int, total_updates: int) -> Rate:
        factor = self.factor(updates, total_updates)
        if self.momentum is None:
            return Rate(factor)
        low, high = self.momentum
        values = [high, low, high, *([high] if self.three_phase else [])]
        return Rate(factor, self._along(values, updates, total_updates))

    def moves_momentum(self) -> bool:
        return self.momentum is not None

    def _along(self, values: list[float], updates: int, total_updates: int) -> float:
        """Return the value at `updates` on the way from each of `values` to the next."""
        rise = self.rise * total_updates
        # the ends of the phases as torch counts them: the first update is number 0, the last total - 1
        ends = [0.0, rise - 1, *([2 * rise - 2] if self.three_phase else []), total_updates - 1.0]
        phases = list(zip(pairwise(ends), pairwise(values), strict=True))
        (begin, end), (start, goal) = next((phase for phase in phases if updates <= phase[0][1]), phases[-1])
        done = min(1.0, (updates - begin) / (end - begin)) if end > begin else 1.0
        return anneal(start, goal, done, self.anneal)
