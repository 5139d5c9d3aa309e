"""fp16 mixed precision: autocast around forward and loss, a dynamic loss scale, weights and optimizer in fp32."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch

from snugfit.core.batch import Batch
from snugfit.core.loss_scale import LossScale
from snugfit.core.origin import made_in_bf16
from snugfit.core.technique import Card, Context, Family, Fidelity, Seams, Technique
from snugfit.errors import SettingError


def autocast_fp16(device: torch.device) -> AbstractContextManager[Any]:
    """Within, matrix products on `device` are computed in fp16.

    >>> with autocast_fp16(torch.device("cpu")):
    ...     (torch.ones(1, 1) @ torch.ones(1, 1)).dtype
    torch.float16
    """
    return torch.autocast(device.type, dtype=torch.float16)


@dataclass(frozen=True)
class FP16(Technique):
    """Run forward and loss under fp16 autocast, with the loss multiplied so that small gradients do not vanish.

    The scale is that of `torch.amp.GradScaler`: times `backoff_factor` when a window is not finite, which then makes no
    update, and times `growth_factor` after `growth_interval` finite windows in a row.
    """

    initial_scale: float = 65536.0
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    force: bool = False

    card: ClassVar[Card] = Card(
        name="fp16",
        summary="Computes matrix products in fp16 under a dynamic loss scale; weights and optimizer stay in fp32.",
        family=Family.NUMERICS,
        source="Micikevicius et al. 2018, arXiv:1710.03740; torch.autocast; torch.amp.GradScaler",
        seams=("scale", "forward"),
        fidelity=Fidelity.MIXED,
        needs="float16",
        precision=True,
        saves_memory=True,
        cost="about half of the activations; a 16-bit copy of the weights in use; a few windows without an update",
        use_when="a GPU older than Ampere; where bf16 is to be had, take that",
    )

    def __post_init__(self) -> None:
        largest = torch.finfo(torch.float32).max
        self.require("initial_scale", 0 < self.initial_scale <= largest, "positive, and finite in float32")
        self.require("growth_factor", 1 < self.growth_factor < math.inf, "above 1")
        self.require("backoff_factor", 0 < self.backoff_factor < 1, "between 0 and 1")
        self.require("growth_interval", self.growth_interval >= 1, "at least 1")

    @classmethod
    def example(cls) -> Self:
        return cls(initial_scale=256.0, growth_interval=2)

    def seams(self, context: Context) -> Seams:
        if not torch.amp.is_autocast_available(context.device.type):
            raise SettingError(
                f"plan.numerics: fp16 needs autocast, which {context.device} does not have. Use plan.numerics: fp32."
            )
        for name, parameter in context.model.named_parameters():
            if parameter.requires_grad and parameter.dtype == torch.float16:
                raise SettingError(
                    f"plan.numerics: fp16 computes in fp16 from weights in float32, and the trained weight '{name}' is in fp16: "
                    "small updates would be lost. Load the model in float32."
                )
        if not self.force and made_in_bf16(context.model):
            raise SettingError(
                "plan.numerics: the weights of this model were made in bf16, whose numbers go up to 3e38: what such a model computes "
                "may exceed 65504, the largest number of fp16, and its loss is then infinite at any scale. Use plan.numerics: "
                "bf16, or fp32 on a device without it; or try all the same: numerics: {fp16: {force: true}}."
            )
        scale = LossScale(self.initial_scale, self.growth_factor, self.backoff_factor, self.growth_interval)

        def forward(batch: Batch) -> AbstractContextManager[Any]:
            return autocast_fp16(context.device)

        return Seams(scale=scale, forward=forward, state=scale)
