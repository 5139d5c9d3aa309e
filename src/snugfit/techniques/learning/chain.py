"""Schedules one after the other."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Self, cast

from snugfit.core.progress import LENGTH, is_length, number_of_updates
from snugfit.core.schedule import Schedule
from snugfit.core.technique import Card, Family, Rate
from snugfit.errors import SettingError


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
        aliases=("SequentialLR",),
        family=Family.LEARNING,
        source="torch's SequentialLR",
        seams=("schedule",),
        cost="none",
        use_when="no single schedule has the shape, as in restarts or a run that is prolonged",
    )

    def __post_init__(self) -> None:
        given = isinstance(self.parts, (tuple, list)) and all(
            isinstance(part, Schedule) for part in self.parts
        )
        self.require(
            "parts", given and len(self.parts) >= 2, "two schedules or more that go by updates alone"
        )
        self.require("at", isinstance(self.at, (tuple, list)), "a list of where the later parts begin")
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
        stretches = self._stretches(total_updates)
        place = max(place for place, (start, _) in enumerate(stretches) if updates >= start)
        start, length = stretches[place]
        return self.parts[place].rate(updates - start, length)

    def moves_momentum(self) -> bool:
        return any(part.moves_momentum() for part in self.parts)

    def check(self, total_updates: int) -> None:
        """Refuse numbers and fractions that do not rise together; warn of parts that begin behind the end of the run.

        A number behind the end does not count among those that must rise: the run may be cut short to try a recipe out.
        """
        late = [start for start in self.at if start >= total_updates]
        places = [start * total_updates if start < 1 else start for start in self.at if start not in late]
        if any(first >= second for first, second in pairwise(places)):
            raise SettingError(
                "chain.at",
                f"must rise, found {self.at!r}, which in {total_updates} updates is "
                f"{', '.join(f'{place:g}' for place in places)}",
                "Give only numbers or only fractions, or change the order.",
            )
        if late:
            self.warn_beyond("at", late[0], total_updates, "the part that would begin there never does")
        for part, (start, length) in zip(self.parts, self._stretches(total_updates), strict=True):
            if start < total_updates:
                part.check(length)

    def needs_total(self) -> bool:
        return any(start < 1 for start in self.at) or self.parts[-1].needs_total()

    def sets_scale(self) -> bool:
        return any(part.sets_scale() for part in self.parts)

    def _stretches(self, total_updates: int) -> list[tuple[int, int]]:
        """Return the first update and the length of each part."""
        starts = [0, *(number_of_updates(start, total_updates) for start in self.at), total_updates]
        return [(start, max(1, end - start)) for start, end in pairwise(starts)]
