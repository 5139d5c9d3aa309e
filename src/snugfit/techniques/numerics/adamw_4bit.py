"""AdamW whose states have 4 bits an element."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import torch

from snugfit.core.parameters import ParameterGroup
from snugfit.core.technique import Card, Context, Family, Fidelity, Seams, Technique
from snugfit.kit.optimizers.low_bit import torchao_adamw


@dataclass(frozen=True)
class AdamW4bit(Technique):
    """AdamW with both moments in 4 bits, each block of 128 elements with a scale of its own; the update itself is in fp32."""

    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    weight_decay: float = 0.01
    min_size: int = 4096

    card: ClassVar[Card] = Card(
        name="adamw_4bit",
        summary="AdamW whose two states take 4 bits an element instead of 32.",
        aliases=("4-bit Adam", "AdamW4bit"),
        family=Family.NUMERICS,
        source="Li, Chen & Zhu 2023, arXiv:2309.01507; torchao.optim",
        seams=("optimizer",),
        fidelity=Fidelity.COMPACT,
        replaces=("adamw",),
        saves_memory=True,
        cost="two states of half a byte a parameter instead of 8 bytes, and 8 bytes a block of 128; small weights keep 8 bytes",
        use_when="8-bit states still do not fit; to fine-tune rather than from scratch",
    )

    def __post_init__(self) -> None:
        self.require_positive("learning_rate", "epsilon")
        self.require_betas("betas")
        self.require_not_negative("weight_decay")
        self.require("min_size", self.min_size >= 1, "at least 1")

    @classmethod
    def example(cls) -> Self:
        return cls(learning_rate=0.01, epsilon=1e-3, weight_decay=0.1, min_size=64)

    def seams(self, context: Context) -> Seams:
        def optimizer(groups: list[ParameterGroup]) -> torch.optim.Optimizer:
            return torchao_adamw(
                groups,
                self.card.name,
                self.min_size,
                lr=self.learning_rate,
                betas=(self.betas[0], self.betas[1]),
                eps=self.epsilon,
                weight_decay=self.weight_decay,
            )

        return Seams(optimizer=optimizer)
