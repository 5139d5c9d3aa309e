"""Spike guard: refuse the update of a window whose loss is far above those before it."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

from snugfit.core.technique import Card, Context, Family, RollBack, Seams, Technique

SIGMA = 1.4826
"""Standard deviations of a normal distribution in its median absolute deviation."""

NARROWEST = 0.01
"""The spread is taken for at least this part of the median: losses that hardly move are no reason to refuse."""


def spike_bound(history: Sequence[float], factor: float) -> float:
    """Return the highest loss that is no spike: `median + factor * spread`.

    The spread is 1.4826 times the median absolute deviation, and 1 % of the median at least. Half of the history may be
    spikes without moving either far.

    >>> round(spike_bound([2.0, 2.2, 1.9, 2.1, 900.0], factor=5.0), 4)
    2.8413
    """
    median = statistics.median(history)
    deviation = statistics.median(abs(loss - median) for loss in history)
    return median + factor * max(SIGMA * deviation, NARROWEST * abs(median))


def is_spike(loss: float, history: Sequence[float], factor: float) -> bool:
    """Return whether a loss is out of all proportion to those of the windows before it; never without a history.

    >>> [is_spike(loss, [2.0, 2.2, 1.9, 2.1], factor=10.0) for loss in (0.1, 3.0, 40.0)]
    [False, False, True]
    """
    return len(history) > 0 and loss > spike_bound(history, factor)


@dataclass(frozen=True)
class SpikeGuard(Technique):
    """Refuse the update of a window whose loss is a spike against the last `history` accepted windows.

    It watches only until that many have been accepted. `action` skip passes over the window; roll_back also goes back to
    the newest checkpoint first, for a model that the windows before have spoilt already.
    """

    history: int = 64
    factor: float = 10.0
    action: Literal["skip", "roll_back"] = "skip"

    card: ClassVar[Card] = Card(
        name="spike_guard",
        summary="Refuses windows whose loss leaps up, and may go back to the newest checkpoint because of one.",
        aliases=("loss spike skipping",),
        family=Family.LEARNING,
        source="Hampel 1974 (median absolute deviation); Chowdhery et al. 2022 (PaLM), arXiv:2204.02311, section 5.1",
        seams=("accept",),
        cost="nothing measurable",
        use_when="long runs on data that nobody has read",
    )

    def __post_init__(self) -> None:
        self.require("history", self.history >= 2, "at least 2")
        self.require_positive("factor")
        self.require("action", self.action in ("skip", "roll_back"), "skip or roll_back")

    @classmethod
    def example(cls) -> Self:
        return cls(history=2, factor=100.0)

    def seams(self, context: Context) -> Seams:
        state = _Losses(self)
        return Seams(accept=state.accept, state=state)


class _Losses:
    """The losses of the last accepted windows, the newest last."""

    def __init__(self, settings: SpikeGuard) -> None:
        self._settings = settings
        self._losses: list[float] = []

    def accept(self, loss: float) -> str | None:
        settings, losses = self._settings, self._losses
        if len(losses) == settings.history and is_spike(loss, losses, settings.factor):
            bound = spike_bound(losses, settings.factor)
            reason = f"spike_guard: above {bound:.4g}, the bound from the {len(losses)} windows accepted last"
            return reason if settings.action == "skip" else RollBack(reason)
        self._losses = [*losses, loss][-settings.history :]
        return None

    def state_dict(self) -> dict[str, Any]:
        return {"losses": list(self._losses)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._losses = list(state["losses"])
