"""The progress of a run: counters that are all that randomness, schedules and the data order depend on. Lengths of its parts."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class Progress:
    """Counters of a run.

    `updates` counts applied optimizer steps; `windows` counts consumed windows, applied or not, and is the
    data's cursor; `skipped` is their difference seen as events; `examples` counts rows trained on.
    """

    updates: int = 0
    windows: int = 0
    skipped: int = 0
    examples: int = 0

    def consume(self, rows: int, applied: bool) -> None:
        """Count a window of `rows` as done."""
        self.windows += 1
        self.examples += rows
        if not applied:
            self.skipped += 1

    def state_dict(self) -> dict[str, int]:
        return asdict(self)

    def load_state_dict(self, state: dict[str, int]) -> None:
        for name, value in state.items():
            setattr(self, name, value)


LENGTH = "a whole number of updates, or a fraction of the run below 1"


def is_length(part: float) -> bool:
    """Return whether `part` is `LENGTH`.

    >>> is_length(0.1), is_length(500), is_length(1.5)
    (True, True, False)
    """
    return 0 <= part < 1 or (part >= 1 and part % 1 == 0)


def number_of_updates(part: float, total_updates: int) -> int:
    """`part` itself from 1 on, a fraction of the run below.

    >>> number_of_updates(0.1, total_updates=200), number_of_updates(50, total_updates=200)
    (20, 50)
    """
    return round(part * total_updates) if part < 1 else int(part)
