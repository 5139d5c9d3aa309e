"""AdamW whose states have 8 bits an element."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

import torch

from snugfit.core.parameters import ParameterGroup
from snugfit.core.technique import Card, Context, Family, Fidelity, Seams, Sharing, Stage, Technique
from snugfit.kit.optimizers.low_bit import bitsandbytes_adamw

DEVICES = ("cpu", "cuda", "xpu")
"""What bitsandbytes has kernels for."""


@dataclass(frozen=True)
class AdamW8bit(Technique):
    """AdamW with both moments in 8 bits, each block of 256 elements with a scale of its own; the update itself is in fp32."""

    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8
    weight_decay: float = 0.01
    paged: bool = False
    min_size: int = 4096

    card: ClassVar[Card] = Card(
        name="adamw_8bit",
        summary="AdamW whose two states take 8 bits an element instead of 32.",
        aliases=("8-bit Adam", "paged_adamw_8bit", "AdamW8bit", "adamw_bnb_8bit"),
        family=Family.NUMERICS,
        source="Dettmers et al. 2022, arXiv:2110.02861; bitsandbytes",
        seams=("optimizer",),
        fidelity=Fidelity.COMPACT,
        replaces=("adamw",),
        saves_memory=True,
        cost="two states of 1 byte a parameter instead of 8 bytes, and 8 bytes a block of 256; small weights keep 8 bytes",
        use_when="full training or large adapters, where the states are what does not fit",
    )

    def __post_init__(self) -> None:
        self.require_positive("learning_rate", "epsilon")
        self.require_betas("betas")
        self.require_not_negative("weight_decay")
        self.require("min_size", self.min_size >= 1, "at least 1")

    @classmethod
    def example(cls) -> Self:
        return cls(learning_rate=0.01, epsilon=1e-3, weight_decay=0.1, min_size=64)

    def refused_on(self, sharing: Sharing) -> str | None:
        if not self.paged or sharing is not Sharing.SHARDS:
            return None
        return "pages are of whole states, and each device has parts of them. Write paged: false (adamw_8bit.paged)."

    def refused_beside(self, other: Technique) -> str | None:
        if not self.paged or Stage.PLACE not in other.card.stages:
            return None
        return "its states are on the host already, without pages. Write paged: false (adamw_8bit.paged)."

    @classmethod
    def rungs(cls) -> tuple[Self, ...]:
        return cls(), cls(paged=True)

    def refused_by(self, device: str) -> str | None:
        if self.paged and device != "cuda":
            return (
                "pages are moved between a GPU and the host by CUDA. Write paged: false (adamw_8bit.paged)."
            )
        if device in DEVICES:
            return None
        return "bitsandbytes has no kernels for it. Use adamw_4bit, by torchao, or adamw."

    def seams(self, context: Context) -> Seams:
        def optimizer(groups: list[ParameterGroup]) -> torch.optim.Optimizer:
            return bitsandbytes_adamw(
                groups,
                self.card.name,
                self.min_size,
                self.paged,
                lr=self.learning_rate,
                betas=(self.betas[0], self.betas[1]),
                eps=self.epsilon,
                weight_decay=self.weight_decay,
            )

        return Seams(optimizer=optimizer)
