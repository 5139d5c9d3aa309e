"""The progress of a run. These counters are all that randomness, schedules and the data order depend on."""

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
