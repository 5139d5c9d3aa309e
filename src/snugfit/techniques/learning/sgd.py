"""Stochastic gradient descent with momentum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import torch

from snugfit.core.parameters import ParameterGroup
from snugfit.core.technique import Card, Context, Family, Seams, Technique


@dataclass(frozen=True)
class SGD(Technique):
    """SGD; biases, norms and other vectors are not decayed."""

    learning_rate: float = 0.1
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 0.0

    card: ClassVar[Card] = Card(
        name="sgd",
        summary="Gradient descent with momentum: the default for convolutional nets.",
        family=Family.LEARNING,
        source="Sutskever et al. 2013; torch.optim.SGD",
        seams=("optimizer",),
        cost="one state a parameter with momentum, none without",
        use_when="residual nets on images, and wherever the scale of the gradient has a meaning",
    )

    def __post_init__(self) -> None:
        self.require_positive("learning_rate")
        self.require("momentum", 0 <= self.momentum < 1, "in [0, 1)")
        self.require("nesterov", not self.nesterov or self.momentum > 0, "false without momentum")
        self.require_not_negative("weight_decay")

    @classmethod
    def example(cls) -> Self:
        return cls(learning_rate=0.05, momentum=0.9, weight_decay=0.01)

    def seams(self, context: Context) -> Seams:
        def optimizer(groups: list[ParameterGroup]) -> torch.optim.Optimizer:
            return torch.optim.SGD(
                groups,
                lr=self.learning_rate,
                momentum=self.momentum,
                nesterov=self.nesterov,
                weight_decay=self.weight_decay,
            )

        return Seams(optimizer=optimizer)
