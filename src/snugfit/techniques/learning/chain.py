"""Schedules one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Self, cast

from snugfit.core.schedule import LENGTH, Schedule, is_length, number_of_updates
from snugfit.core.technique import Card, Family, Rate


@dataclass(frozen=True)
class Chain(Schedule):
    """Schedules one after the other; each sees its own stretch of the run as a whole one.

    `at` says where the second and each further part begins.
    """

    parts: tuple[Schedule, ...]
    at: tuple[float, ...]

    card: ClassVar[Card] = Card(
        name="chain",
        summary="Runs schedules one after the other, each over its own stretch of the run.",
        family=Family.LEARNING,
        source="torch's SequentialLR",
        seams=("schedule",),
        cost="none",
        use_when="no single schedule has the shape, as in restarts or a run that is prolonged",
    )

    def __post_init__(self) -> None:
        self.require("parts", len(self.parts) >= 2, "two schedules or more")
        count = len(self.parts) - 1
        fractions = [part for part in self.at if part < 1]
        updates = [part for part in self.at if part >= 1]
        rising = all(first < second for some in (fractions, updates) for first, second in pairwise(some))
        possible = len(self.at) == count and rising and all(part > 0 and is_length(part) for part in self.at)
        self.require("at", possible, f"{count} rising, where parts 2 to {count + 1} begin, each {LENGTH}")

    @classmethod
    def example(cls) -> Self:
        from snugfit.techniques import find

        constant, polynomial = cast(Any, (find("constant"), find("polynomial")))
        return cls(parts=(constant(warmup=2), polynomial(power=2.0, minimum=0.1)), at=(2,))

    def factor(self, updates: int, total_updates: int) -> float:
        return self.rate(updates, total_updates).factor

    def rate(self, updates: int, total_updates: int) -> Rate:
        starts = [0, *(number_of_updates(start, total_updates) for start in self.at)]
        place = max(place for place, start in enumerate(starts) if updates >= start)
        end = total_updates if place == len(self.at) else starts[place + 1]
        return self.parts[place].rate(updates - starts[place], max(1, end - starts[place]))

    def needs_total(self) -> bool:
        return any(start < 1 for start in self.at) or self.parts[-1].needs_total()

    def sets_scale(self) -> bool:
        return any(part.sets_scale() for part in self.parts)
