"""Lookahead: slow weights follow the fast ones from a distance, and the fast ones return to them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from snugfit.core.progress import Progress
from snugfit.core.technique import Card, Context, Family, Seams, Stage, Technique
from snugfit.kit.averages import Averages
from snugfit.kit.optimizers.foreach import copy_, lerp_


def look_back_(slow: Sequence[Tensor], parameters: Sequence[Tensor], alpha: float) -> None:
    """Move `slow` by `alpha` of the way to the parameters, and the parameters to `slow`, in place.

    >>> slow, fast = [torch.tensor([1.0])], [torch.tensor([3.0])]
    >>> look_back_(slow, fast, alpha=0.25)
    >>> slow, fast
    ([tensor([1.5000])], [tensor([1.5000])])
    """
    lerp_(slow, parameters, alpha)
    copy_(parameters, slow)


@dataclass(frozen=True)
class Lookahead(Technique):
    """Go, after every `every` applied updates, `alpha` of the way that they went; the optimizer keeps its moments."""

    every: int = 5
    alpha: float = 0.5

    card: ClassVar[Card] = Card(
        name="lookahead",
        summary="Goes back, every few updates, to slow weights that follow the fast ones part of the way.",
        family=Family.LEARNING,
        source="Zhang et al. 2019, arXiv:1907.08610",
        seams=("updated",),
        stages=(Stage.MOVE,),
        cost="one copy of the parameters that train; one pass over them every few updates",
        use_when="an optimizer whose updates jump about; with radam for a Ranger",
    )

    def __post_init__(self) -> None:
        self.require("every", self.every >= 1, "at least 1")
        self.require("alpha", 0 < self.alpha <= 1, "in (0, 1]")

    @classmethod
    def example(cls) -> Self:
        return cls(every=2, alpha=0.6)

    def seams(self, context: Context) -> Seams:
        state = _SlowWeights(context.model, self)
        return Seams(updated=state.update, state=state)


class _SlowWeights:
    def __init__(self, model: nn.Module, settings: Lookahead) -> None:
        self._settings = settings
        self._slow = Averages(model)

    def update(self, model: nn.Module, progress: Progress) -> None:
        if progress.updates % self._settings.every == 0:
            with torch.no_grad():
                look_back_(self._slow.tensors(), self._slow.parameters(), self._settings.alpha)

    def state_dict(self) -> dict[str, Any]:
        return {"slow": self._slow.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._slow.load_state_dict(state["slow"])
