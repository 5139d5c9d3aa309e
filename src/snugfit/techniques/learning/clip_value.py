"""Clip each element of the true gradient."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

from torch import Tensor, nn
from torch.nn.utils import clip_grad_value_

from snugfit.core.technique import Card, Context, Family, Moment, Seams, Stage, Technique


@dataclass(frozen=True)
class ClipValue(Technique):
    """Clip each element of the gradient of the whole window into `[-max_value, max_value]`, by torch's `clip_grad_value_`.

    Unlike a bound on the norm it changes the gradient's direction. It stands before bounds on units and on the norm.
    """

    max_value: float = 1.0

    card: ClassVar[Card] = Card(
        name="clip_value",
        summary="Bounds each element of the gradient by itself; the gradient's direction changes.",
        aliases=("gradient clipping by value", "clip_grad_value_"),
        family=Family.LEARNING,
        source="Mikolov 2012, Statistical language models based on neural networks; torch.nn.utils.clip_grad_value_",
        seams=("adjust",),
        stages=(Stage.ELEMENT,),
        cost="one pass over the gradients",
        use_when="single weights get gradients out of all proportion; else bound the norm",
    )

    def __post_init__(self) -> None:
        self.require("max_value", self.max_value > 0, "positive")

    @classmethod
    def example(cls) -> Self:
        return cls(max_value=0.01)

    def seams(self, context: Context) -> Seams:
        def adjust(parameters: Sequence[nn.Parameter], _moment: Moment) -> Mapping[str, Tensor]:
            clip_grad_value_(parameters, self.max_value)
            return {}

        return Seams(adjust=adjust)
