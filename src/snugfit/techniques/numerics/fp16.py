"""fp16 mixed precision: autocast around forward and loss, a dynamic loss scale, weights and optimizer in fp32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from snugfit.core.technique import Card, Context, Family, Fidelity, Seams
from snugfit.errors import SettingError
from snugfit.kit.precision.fp16_computing import HalfPrecision
from snugfit.kit.precision.fp16_computing import autocast_fp16 as autocast_fp16


@dataclass(frozen=True)
class FP16(HalfPrecision):
    """Run forward and loss under fp16 autocast, with the loss multiplied so that small gradients do not vanish.

    The scale is that of `torch.amp.GradScaler`: times `backoff_factor` when a window is not finite, which then makes no
    update, and times `growth_factor` after `growth_interval` finite windows in a row.
    """

    card: ClassVar[Card] = Card(
        name="fp16",
        summary="Computes matrix products in fp16 under a dynamic loss scale; weights and optimizer stay in fp32.",
        aliases=("16-mixed", "AMP", "automatic mixed precision", "GradScaler"),
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

    def seams(self, context: Context) -> Seams:
        seams = self.computing(context)
        for name, parameter in context.model.named_parameters():
            if parameter.requires_grad and parameter.dtype == torch.float16:
                raise SettingError(
                    "plan.numerics",
                    f"fp16 computes in fp16 from weights in float32, and the trained weight '{name}' is in fp16: small "
                    "updates would be lost",
                    "Load the model in float32.",
                )
        self.check_range(context.model)
        return seams
