"""The base of schedules: lengths in applied updates, warm-up, and being a pure function of the updates."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from snugfit.core.progress import LENGTH, is_length, number_of_updates
from snugfit.core.technique import Context, Rate, Seams, Technique
from snugfit.errors import SettingError


def warmup_factor(updates: int, warmup: int) -> float:
    """Rises linearly to 1 at update number `warmup`, then stays.

    The first update already moves: its factor is 1 / warmup, unlike in transformers, where it is 0.

    >>> [warmup_factor(update, warmup=4) for update in range(5)]
    [0.25, 0.5, 0.75, 1.0, 1.0]
    """
    return min(1.0, (updates + 1) / warmup) if warmup > 0 else 1.0


def known_total(name: str, context: Context, needed: bool) -> int:
    """Return the length of the run in updates; 1 where it is neither known nor needed.

    Raises:
        SettingError: the technique `name` needs it, and it is not known.
    """
    if context.total_updates is None and needed:
        raise SettingError(name, "needs the number of updates of the run", "Give total_updates to the step.")
    return context.total_updates or 1


class Schedule(Technique):
    """Base of the schedules that are pure functions of the applied updates; they can be parts of others."""

    def factor(self, updates: int, total_updates: int) -> float:
        """Return the learning rate's factor for the update that follows `updates` applied ones."""
        raise NotImplementedError

    def rate(self, updates: int, total_updates: int) -> Rate:
        """Return the factor for that update, with the momentum where the schedule moves that too."""
        return Rate(self.factor(updates, total_updates))

    def needs_total(self) -> bool:
        """Return whether the length of the run matters."""
        return True

    def sets_scale(self) -> bool:
        """Return whether the optimizer's learning rate has no meaning without it, because the highest factor is not 1."""
        return False

    def moves_momentum(self) -> bool:
        """Return whether it sets the momentum in any update; in the others the momentum is the optimizer's own."""
        return False

    def check(self, total_updates: int) -> None:
        """Refuse what cannot be over a run of that many updates.

        Raises:
            SettingError: names the setting.
        """

    def seams(self, context: Context) -> Seams:
        total = known_total(self.card.name, context, self.needs_total())
        if context.total_updates is not None:
            self.check(total)
        return Seams(schedule=Rates(lambda _: self, total))


@dataclass(frozen=True)
class Rates:
    """The seam that schedules fill: each parameter group has one of them, over the whole run."""

    schedule_of: Callable[[Mapping[str, Any]], Schedule]
    total_updates: int

    def __call__(self, updates: int, group: Mapping[str, Any]) -> Rate:
        return self.schedule_of(group).rate(updates, self.total_updates)

    def moves_momentum(self, group: Mapping[str, Any]) -> bool:
        """Return whether the group's momentum is set in any update."""
        return self.schedule_of(group).moves_momentum()


@dataclass(frozen=True)
class WarmedUp(Schedule):
    """Base of schedules with a linear warm-up, then what `decay` says of the rest of the run."""

    warmup: float = 0.0

    def __post_init__(self) -> None:
        self.require("warmup", is_length(self.warmup), LENGTH)

    @classmethod
    def example(cls) -> Self:
        return cls(warmup=2)

    def decay(self, done: float) -> float:
        """Return the factor when the part `done` of the run after warm-up is behind, in [0, 1]."""
        raise NotImplementedError

    def check(self, total_updates: int) -> None:
        warmup = number_of_updates(self.warmup, total_updates)
        if (
            warmup > total_updates
        ):  # its last update has the whole rate: it may be all of a run, or of a part in a chain
            self.warn_beyond("warmup", warmup, total_updates, "the whole learning rate is never reached")

    def factor(self, updates: int, total_updates: int) -> float:
        warmup = number_of_updates(self.warmup, total_updates)
        if updates < warmup:
            return warmup_factor(updates, warmup)
        return self.decay(min(1.0, (updates - warmup) / max(1, total_updates - warmup)))
