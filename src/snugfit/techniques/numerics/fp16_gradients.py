"""Gradients in fp16 between devices: half of the bytes, with eight times the precision of bf16 and a small range."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from snugfit.core.gradient_exchange import Exchange, SentIn, warn_alone
from snugfit.core.technique import Card, Context, Family, Fidelity, Seams, Technique


@dataclass(frozen=True)
class FP16Gradients(Technique):
    """Round gradients to fp16 where several devices add them up; everything else stays as it is.

    What does not fit in fp16 makes the window not finite on all devices, so that it changes nothing.
    """

    card: ClassVar[Card] = Card(
        name="fp16_gradients",
        summary="Sends gradients between devices in fp16, which halves what is sent.",
        aliases=("fp16_compress_hook",),
        family=Family.NUMERICS,
        source="torch's fp16_compress_hook (DDP) and MixedPrecisionPolicy.reduce_dtype (FSDP2)",
        seams=("exchange",),
        fidelity=Fidelity.MIXED,
        cost="each gradient is rounded to 11 bits of precision; below 6e-8 it is lost, above 65504 so is the window",
        use_when="several devices wait for each other's gradients, and bf16_gradients is too coarse; with fp16",
    )

    def exchange(self) -> Exchange:
        return SentIn(torch.float16)

    def seams(self, context: Context) -> Seams:
        warn_alone(self.card.name, context.exchange)
        return Seams()
