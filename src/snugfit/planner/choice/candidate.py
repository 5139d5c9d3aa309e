"""A plan that was predicted, what it is held against, and the time to look for it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from snugfit.core.technique import Fidelity
from snugfit.planner.answers.answer import Prediction
from snugfit.planner.choice.rungs import Techniques, level_of

_MARGINS = {"cpu": 0.01}
_UNMEASURED = 0.05
_LEAST = 1e-3
"""Seconds of a search for which none are left: it predicts the recipe's own plan alone."""


def margin_on(kind: str) -> float:
    """Share of the memory of a kind of device that is left free, for what it takes that no one asked for.

    On a CPU predictions of what a process is resident with were short of it by 0.3% at most (benchmarks/planner/memory.md); on other
    devices that has not been measured.
    """
    return _MARGINS.get(kind, _UNMEASURED)


@dataclass(frozen=True)
class Budget:
    """The limits of a run.

    They are the bytes of the device and of the host, how coarse its numbers may be, and the share of the
    device's memory that is left free.
    """

    memory_bytes: int
    host_bytes: int | None = None
    fidelity: Fidelity = Fidelity.FULL
    margin: float = _UNMEASURED

    def holds(self, prediction: Prediction) -> bool:
        """Return whether a plan that needs this fits, with the margin, even if the prediction is as short as any was."""
        return self.has(prediction.most_bytes, prediction.host_peak_bytes)

    def has(self, reserved: float, host: float) -> bool:
        """Return whether so many bytes of the device and of the host fit, with the margin."""
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
    prediction: Prediction
    fits: bool

    @property
    def rung(self) -> str:
        """Return in words what it adds to the recipe, and the micro-batch."""
        return " + ".join([*(self.added or ("as the recipe says",)), f"micro-batch {self.micro_batch}"])

    @property
    def level(self) -> Fidelity:
        return level_of(self.techniques)

    @property
    def lasting(self) -> int:
        """Bytes that are there however small the micro-batch is, and whatever is done to activations: of what lasts beside a pass."""
        return self.bytes_of("weights", "gradients", "optimizer", "averages")

    def bytes_of(self, *kinds: str) -> int:
        """Return bytes of these kinds at the peak."""
        return sum(self.prediction.peak_by_kind.get(kind, 0) for kind in kinds)

    def same(self, other: Candidate | None) -> bool:
        """Return whether it is the same plan."""
        return other is not None and (self.techniques, self.micro_batch) == (
            other.techniques,
            other.micro_batch,
        )


@dataclass(frozen=True)
class SearchTime:
    """Seconds that were given to several searches of one answer together, from `started` on; None for no bound."""

    seconds: float | None
    started: float = field(default_factory=time.monotonic)

    def part(self, share: float = 1.0) -> float | None:
        """Return this share of the seconds that are left."""
        if self.seconds is None:
            return None
        return max(_LEAST, share * (self.started + self.seconds - time.monotonic()))
