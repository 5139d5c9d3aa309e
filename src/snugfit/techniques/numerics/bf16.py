"""bf16 mixed precision: autocast around forward and loss, weights and optimizer in fp32."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from snugfit.core.batch import Batch
from snugfit.core.technique import Card, Context, Family, Fidelity, Seams, Technique
from snugfit.kit.precision.bf16_rounding import check_bf16


@dataclass(frozen=True)
class BF16(Technique):
    """Run forward and loss under bf16 autocast; the loss itself stays in fp32."""

    card: ClassVar[Card] = Card(
        name="bf16",
        summary="Computes matrix products in bf16; weights, gradients and optimizer stay in fp32.",
        aliases=("bf16-mixed", "bfloat16 mixed precision"),
        family=Family.NUMERICS,
        source="Kalamkar et al. 2019, arXiv:1905.12322; torch.autocast",
        seams=("forward",),
        fidelity=Fidelity.MIXED,
        needs="bfloat16",
        precision=True,
        saves_memory=True,
        cost="about half of the activations; a 16-bit copy of the weights in use",
        use_when="Ampere or newer, or a CPU with AMX or AVX-512 bf16",
    )

    def seams(self, context: Context) -> Seams:
        check_bf16(context.device)

        def forward(_batch: Batch) -> AbstractContextManager[Any]:
            return torch.autocast(context.device.type, dtype=torch.bfloat16)

        return Seams(forward=forward)
