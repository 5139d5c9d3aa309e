"""A plan that was predicted, and what it is held against."""

from __future__ import annotations

from dataclasses import dataclass

from snugfit.core.technique import Fidelity
from snugfit.planner.answer import Prediction
from snugfit.planner.rungs import Techniques, level_of

MARGIN = 0.05
"""Share of the budget that is left free: for what a device takes that no one asked for."""


@dataclass(frozen=True)
class Budget:
    """What a run may take: bytes of the device and of the host, and how coarse its numbers may be."""

    memory_bytes: int
    host_bytes: int | None = None
    fidelity: Fidelity = Fidelity.FULL
    margin: float = MARGIN

    def holds(self, found: Prediction) -> bool:
        """Whether a plan that needs this fits, with the margin."""
        return self.has(found.reserved_bytes, found.host_peak_bytes)

    def has(self, reserved: float, host: float) -> bool:
        """Whether so many bytes of the device and of the host fit, with the margin."""
        return reserved <= self.usable and (self.host_bytes is None or host <= self.host_bytes)

    @property
    def usable(self) -> int:
        return round(self.memory_bytes * (1 - self.margin))


@dataclass(frozen=True)
class Candidate:
    """A plan that was predicted."""

    techniques: Techniques
    micro_batch: int
    added: tuple[str, ...]
    found: Prediction
    fits: bool

    @property
    def rung(self) -> str:
        """In words: what it adds to the recipe, and the micro-batch."""
        return " + ".join([*(self.added or ("as the recipe says",)), f"micro-batch {self.micro_batch}"])

    @property
    def level(self) -> Fidelity:
        return level_of(self.techniques)

    def same(self, other: Candidate | None) -> bool:
        """Whether it is the same plan."""
        return other is not None and (self.techniques, self.micro_batch) == (
            other.techniques,
            other.micro_batch,
        )
