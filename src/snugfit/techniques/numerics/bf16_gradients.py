"""Gradients in bf16 between devices: half of the bytes, with the range of float32."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from snugfit.core.gradient_exchange import Exchange, SentIn, warn_alone
from snugfit.core.technique import Card, Context, Family, Fidelity, Seams, Technique


@dataclass(frozen=True)
class BF16Gradients(Technique):
    """Round gradients to bf16 where several devices add them up; everything else stays as it is."""

    card: ClassVar[Card] = Card(
        name="bf16_gradients",
        summary="Sends gradients between devices in bf16, which halves what is sent.",
        aliases=("bf16_compress_hook", "gradient compression"),
        family=Family.NUMERICS,
        source="torch's bf16_compress_hook (DDP) and MixedPrecisionPolicy.reduce_dtype (FSDP2)",
        seams=("exchange",),
        fidelity=Fidelity.MIXED,
        cost="each gradient is rounded to 8 bits of precision, and so is each addition over devices",
        use_when="several devices wait for each other's gradients",
    )

    def exchange(self) -> Exchange:
        return SentIn(torch.bfloat16)

    def seams(self, context: Context) -> Seams:
        warn_alone(self.card.name, context.exchange)
        return Seams()
