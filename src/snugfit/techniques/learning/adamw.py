"""AdamW."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import torch

from snugfit.core.parameters import ParameterGroup
from snugfit.core.technique import Card, Context, Family, Seams, Technique
from snugfit.kit.optimizers.foreach import fastest_kernel


@dataclass(frozen=True)
class AdamW(Technique):
    """Adam with decoupled weight decay; biases, norms and other vectors are not decayed."""

    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    weight_decay: float = 0.01

    card: ClassVar[Card] = Card(
        name="adamw",
        summary="Adam with decoupled weight decay: the default for transformers.",
        family=Family.LEARNING,
        source="Loshchilov & Hutter 2019, arXiv:1711.05101; torch.optim.AdamW",
        seams=("optimizer",),
        cost="two states a parameter: 8 bytes in float32",
        use_when="the default; 1e-5 to 5e-5 to fine-tune, 3e-4 to 1e-3 from scratch",
    )

    def __post_init__(self) -> None:
        self.require_positive("learning_rate", "epsilon")
        self.require_betas("betas")
        self.require_not_negative("weight_decay")

    @classmethod
    def example(cls) -> Self:
        return cls(learning_rate=0.01, weight_decay=0.1)

    def seams(self, context: Context) -> Seams:
        def optimizer(groups: list[ParameterGroup]) -> torch.optim.Optimizer:
            return torch.optim.AdamW(
                groups,
                lr=self.learning_rate,
                betas=(self.betas[0], self.betas[1]),
                eps=self.epsilon,
                weight_decay=self.weight_decay,
                **fastest_kernel(context.device),
            )

        return Seams(optimizer=optimizer)
