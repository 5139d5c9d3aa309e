"""RMSprop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import torch

from snugfit.core.parameters import ParameterGroup
from snugfit.core.technique import Card, Context, Family, Seams, Technique


@dataclass(frozen=True)
class RMSprop(Technique):
    """Each element's gradient over the root of its running mean square; vectors are not decayed."""

    learning_rate: float = 1e-3
    decay: float = 0.99
    epsilon: float = 1e-8
    momentum: float = 0.0
    centered: bool = False
    weight_decay: float = 0.0

    card: ClassVar[Card] = Card(
        name="rmsprop",
        summary="Divides each element's gradient by the root of its running mean square.",
        family=Family.LEARNING,
        source="Tieleman & Hinton 2012, Coursera lecture 6.5; centered: Graves 2013, arXiv:1308.0850; torch.optim.RMSprop",
        seams=("optimizer",),
        cost="one state a parameter; one more with momentum, one more if centered",
        use_when="recurrent nets, and recipes of convolutional nets that were tuned with it",
    )

    def __post_init__(self) -> None:
        self.require_positive("learning_rate", "epsilon")
        self.require("decay", 0 <= self.decay < 1, "in [0, 1)")
        self.require("momentum", 0 <= self.momentum < 1, "in [0, 1)")
        self.require_not_negative("weight_decay")

    @classmethod
    def example(cls) -> Self:
        return cls(learning_rate=0.005, decay=0.9, epsilon=1e-6, momentum=0.5, weight_decay=0.1)

    def seams(self, context: Context) -> Seams:
        def optimizer(groups: list[ParameterGroup]) -> torch.optim.Optimizer:
            return torch.optim.RMSprop(
                groups,
                lr=self.learning_rate,
                alpha=self.decay,
                eps=self.epsilon,
                momentum=self.momentum,
                centered=self.centered,
                weight_decay=self.weight_decay,
                foreach=True,
            )

        return Seams(optimizer=optimizer)
