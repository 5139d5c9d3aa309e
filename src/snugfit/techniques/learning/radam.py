"""RAdam: Adam whose adaptive rate waits until it can be trusted."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Self

import torch

from snugfit.core.parameters import ParameterGroup
from snugfit.core.technique import Card, Context, Family, Seams, Technique


def rectification(update: int, beta2: float) -> float | None:
    """Factor of Adam's step at that update (from 1); None while the step is momentum alone.

    >>> [rectification(update, beta2=0.999) for update in (1, 5)]
    [None, None]
    >>> round(rectification(6, beta2=0.999), 4), round(rectification(10_000, beta2=0.999), 4)
    (0.0258, 0.9998)
    """
    longest = 2 / (1 - beta2) - 1
    length = longest - 2 * update * beta2**update / (1 - beta2**update)
    if length <= 5:
        return None
    return math.sqrt((length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length))


@dataclass(frozen=True)
class RAdam(Technique):
    """Rectified Adam with decoupled weight decay; biases, norms and other vectors are not decayed."""

    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    weight_decay: float = 0.01

    card: ClassVar[Card] = Card(
        name="radam",
        summary="Adam whose first updates are rectified, so that it needs no warm-up of the learning rate.",
        family=Family.LEARNING,
        source="Liu et al. 2020, arXiv:1908.03265; torch.optim.RAdam",
        seams=("optimizer",),
        cost="two states a parameter: 8 bytes in float32",
        use_when="in place of AdamW where no warm-up is wanted; with lookahead for a Ranger",
    )

    def __post_init__(self) -> None:
        self.require_positive("learning_rate", "epsilon")
        self.require_betas("betas")
        self.require_not_negative("weight_decay")

    @classmethod
    def example(cls) -> Self:
        return cls(learning_rate=0.05, betas=(0.8, 0.99), weight_decay=0.1)

    def seams(self, context: Context) -> Seams:
        def optimizer(groups: list[ParameterGroup]) -> torch.optim.Optimizer:
            return torch.optim.RAdam(
                groups,
                lr=self.learning_rate,
                betas=(self.betas[0], self.betas[1]),
                eps=self.epsilon,
                weight_decay=self.weight_decay,
                decoupled_weight_decay=True,
                foreach=True,
            )

        return Seams(optimizer=optimizer)
