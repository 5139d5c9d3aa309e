"""Exponential moving average of the weights."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from snugfit.core.progress import Progress
from snugfit.core.technique import Card, Context, Family, Seams, Stage, Technique
from snugfit.kit.averages import Averages, swapped
from snugfit.kit.optimizers.foreach import lerp_


def ema_(averages: Sequence[Tensor], parameters: Sequence[Tensor], decay: float) -> None:
    """Update averages in place: `decay * average + (1 - decay) * parameter`.

    >>> average = [torch.tensor([1.0])]
    >>> ema_(average, [torch.tensor([0.0])], decay=0.75)
    >>> average
    [tensor([0.7500])]
    """
    lerp_(averages, parameters, 1.0 - decay)


def warm_decay(decay: float, updates: int) -> float:
    """Return the decay after that many updates: small at first, so that the average forgets the start.

    >>> warm_decay(0.999, updates=1)
    0.18181818181818182
    """
    return min(decay, (1 + updates) / (10 + updates))


@dataclass(frozen=True)
class EMA(Technique):
    """Evaluate, compare and export an exponential moving average of the weights.

    Averages the parameters that train (in float32 at least), after applied updates only; buffers are the model's.
    """

    decay: float = 0.999
    warmup: bool = True

    card: ClassVar[Card] = Card(
        name="ema",
        summary="Keeps a moving average of the weights, and evaluates and saves that instead of the last weights.",
        aliases=("exponential moving average", "EMAWeightAveraging", "model averaging"),
        family=Family.LEARNING,
        source="Polyak & Juditsky 1992; decay warm-up as in TensorFlow's ExponentialMovingAverage",
        seams=("updated", "weights"),
        stages=(Stage.AVERAGE,),
        cost="one copy of the parameters that train; one pass over them an update",
        use_when="the evaluation metric jumps from one evaluation to the next",
    )

    def __post_init__(self) -> None:
        self.require("decay", 0 <= self.decay < 1, "in [0, 1)")

    @classmethod
    def example(cls) -> Self:
        return cls(decay=0.7)

    def seams(self, context: Context) -> Seams:
        state = _Moving(context.model, self)
        return Seams(updated=state.update, weights=state.swapped_in, state=state)


class _Moving:
    def __init__(self, model: nn.Module, settings: EMA) -> None:
        self._settings = settings
        self._averages = Averages(model)

    def update(self, model: nn.Module, progress: Progress) -> None:
        decay = self._settings.decay
        if self._settings.warmup:
            decay = warm_decay(decay, progress.updates)
        with torch.no_grad():
            ema_(self._averages.tensors(), self._averages.parameters(), decay)

    def swapped_in(self, model: nn.Module) -> AbstractContextManager[None]:
        return swapped(self._averages.parameters(), self._averages.tensors())

    def state_dict(self) -> dict[str, Any]:
        return {"averages": self._averages.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._averages.load_state_dict(state["averages"])
