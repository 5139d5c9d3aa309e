"""What all schedules share: the length of warm-up and of the run, in applied updates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from snugfit.core.technique import Context, Rate, Seams, Technique
from snugfit.errors import SettingError


def warmup_updates(warmup: float, total_updates: int) -> int:
    """Updates of warm-up: `warmup` itself from 1 on, a fraction of the run below.

    >>> warmup_updates(0.1, total_updates=200), warmup_updates(50, total_updates=200)
    (20, 50)
    """
    return round(warmup * total_updates) if warmup < 1 else int(warmup)


def warmup_factor(updates: int, warmup: int) -> float:
    """Rises linearly to 1 at update number `warmup`, then stays.

    The first update already moves: its factor is 1 / warmup, unlike in transformers, where it is 0.

    >>> [warmup_factor(update, warmup=4) for update in range(5)]
    [0.25, 0.5, 0.75, 1.0, 1.0]
    """
    return min(1.0, (updates + 1) / warmup) if warmup > 0 else 1.0


@dataclass(frozen=True)
class Schedule(Technique):
    """Base of schedules: warm-up, then what `decay` says of the rest of the run."""

    warmup: float = 0.0

    def __post_init__(self) -> None:
        possible = 0 <= self.warmup < 1 or (self.warmup >= 1 and self.warmup % 1 == 0)
        self.require("warmup", possible, "a whole number of updates, or a fraction of the run below 1")

    @classmethod
    def example(cls) -> Self:
        return cls(warmup=2)

    def decay(self, done: float) -> float:
        """The factor when the part `done` of the run after warm-up is behind, in [0, 1]."""
        raise NotImplementedError

    def factor(self, updates: int, total_updates: int) -> float:
        """The learning rate's factor for the update that follows `updates` applied ones."""
        warmup = warmup_updates(self.warmup, total_updates)
        if updates < warmup:
            return warmup_factor(updates, warmup)
        return self.decay(min(1.0, (updates - warmup) / max(1, total_updates - warmup)))

    def momentum(self, updates: int, total_updates: int) -> float | None:
        """The momentum for that update, where the schedule moves it too."""
        return None

    def seams(self, context: Context) -> Seams:
        total = context.total_updates
        if total is None:
            if self.needs_total():
                raise SettingError(
                    f"{self.card.name}: needs the number of updates of the run. Give total_updates to the step."
                )
            total = 1
        return Seams(
            schedule=lambda updates, group: Rate(self.factor(updates, total), self.momentum(updates, total))
        )

    def needs_total(self) -> bool:
        """Whether the length of the run matters."""
        return True
