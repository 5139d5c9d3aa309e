"""Stochastic weight averaging: the plain mean of the weights along the end of the run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from snugfit.core.progress import LENGTH, Progress, is_length, number_of_updates
from snugfit.core.schedule import known_total
from snugfit.core.technique import Card, Context, Family, Seams, Stage, Technique
from snugfit.kit.averages import Averages, swapped
from snugfit.kit.batch_norm import NormStatistics
from snugfit.kit.optimizers.foreach import lerp_


def average_(averages: Sequence[Tensor], parameters: Sequence[Tensor], members: int) -> None:
    """Take the parameters into the mean of `members` earlier ones, in place; with 0 it becomes the parameters.

    >>> average = [torch.tensor([0.0])]
    >>> for members, weight in enumerate([3.0, 6.0, 12.0]):
    ...     average_(average, [torch.tensor([weight])], members)
    >>> average
    [tensor([7.])]
    """
    lerp_(averages, parameters, 1.0 / (members + 1))


@dataclass(frozen=True)
class SWA(Technique):
    """Evaluate, compare and export the plain mean of the weights after `start` and every `every` updates from there.

    Until then the weights are the model's own. Batch norm's statistics are estimated anew before each evaluation, from
    the first `norm_windows` training windows of an epoch; other buffers are the model's.
    """

    start: float = 0.75
    every: int = 1
    norm_windows: int = 100

    card: ClassVar[Card] = Card(
        name="swa",
        summary="Averages the weights along the end of the run, and evaluates and saves the average.",
        aliases=("stochastic weight averaging",),
        family=Family.LEARNING,
        source="Izmailov et al. 2018, arXiv:1803.05407; torch's AveragedModel and update_bn",
        seams=("updated", "weights", "settle"),
        stages=(Stage.AVERAGE,),
        cost="one copy of the parameters that train; with batch norm, forwards of norm_windows windows an evaluation",
        use_when="the end of the run has a learning rate that stays high, such as constant or flat_cosine",
    )

    def __post_init__(self) -> None:
        self.require("start", is_length(self.start), LENGTH)
        self.require("every", self.every >= 1, "at least 1")
        self.require("norm_windows", self.norm_windows >= 0, "zero or positive")

    @classmethod
    def example(cls) -> Self:
        return cls(start=1, every=2, norm_windows=2)

    def seams(self, context: Context) -> Seams:
        total = known_total(self.card.name, context, needed=0 < self.start < 1)
        start = number_of_updates(self.start, total)
        self.warn_beyond(
            "start", start, context.total_updates, "nothing but the last weights can be averaged"
        )
        state = _Mean(context, self, start)
        return Seams(
            updated=state.update,
            weights=state.swapped_in,
            averaging=state.averaging,
            settle=state.settle,
            state=state,
        )


class _Mean:
    def __init__(self, context: Context, settings: SWA, start: int) -> None:
        self._start = start
        self._every = settings.every
        self._members = 0
        self._averages = Averages(context.model)
        self._norms = NormStatistics(context.device, settings.norm_windows)

    def update(self, model: nn.Module, progress: Progress) -> None:
        since = progress.updates - self._start
        if since < 0 or since % self._every != 0:
            return
        with torch.no_grad():
            average_(self._averages.tensors(), self._averages.parameters(), self._members)
        self._members += 1

    def averaging(self) -> bool:
        return self._members > 0

    def settle(self, model: nn.Module, passes: Iterator[None]) -> None:
        if self.averaging():
            self._norms.estimate(model, passes)

    def swapped_in(self, model: nn.Module) -> AbstractContextManager[None]:
        if not self.averaging():
            return nullcontext()
        buffers, statistics = self._norms.buffers_and_estimates(model)
        return swapped([*self._averages.parameters(), *buffers], [*self._averages.tensors(), *statistics])

    def state_dict(self) -> dict[str, Any]:
        return {
            "members": self._members,
            "averages": self._averages.state_dict(),
            "norms": self._norms.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._members = state["members"]
        self._averages.load_state_dict(state["averages"])
        self._norms.load_state_dict(state["norms"])
