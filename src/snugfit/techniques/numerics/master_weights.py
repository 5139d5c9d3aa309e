"""True mixed precision: weights of the model in bf16, their masters in fp32 with the optimizer."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import nn

from snugfit.core.batch import Batch
from snugfit.core.technique import (
    Card,
    Context,
    Family,
    Fidelity,
    MakeOptimizer,
    Seams,
    Sharing,
    Stage,
    Technique,
)
from snugfit.kit.optimizers.masters import MASTERS_STEPPED, NARROW_HEAD, narrow_, on_masters
from snugfit.kit.precision.bf16_rounding import check_bf16


@dataclass(frozen=True)
class MasterWeights(Technique):
    """Hold the model's matrices in bf16 and compute under bf16 autocast; the optimizer steps masters in fp32 and rounds them to the weights.

    `gradients` is what those of several micro-batches are added up in.
    """

    gradients: Literal["bf16", "fp32"] = "bf16"

    card: ClassVar[Card] = Card(
        name="master_weights",
        summary="Weights and gradients in bf16, masters and states in fp32 with the optimizer; norms stay in fp32.",
        aliases=("fp32 master weights", "O2 mixed precision"),
        family=Family.NUMERICS,
        source="Micikevicius et al. 2018, arXiv:1710.03740; Rajbhandari et al. 2020, arXiv:1910.02054",
        seams=("stepping", "forward"),
        stages=(Stage.NARROW, Stage.SHADOW),
        fidelity=Fidelity.MIXED,
        needs="bfloat16",
        precision=True,
        conflicts={
            "fp32_logits": NARROW_HEAD,
            "schedule_free": MASTERS_STEPPED,
            "powersgd": "its gradients are in bf16, in which columns become orthogonal to two digits only. Remove one, or use bf16_gradients.",
        },
        saves_memory=True,
        cost="16 bytes a parameter with AdamW, of which 12 are the optimizer's; about half of the activations",
        use_when="full training of a large model, with optimizer_offload: 2 bytes a parameter and the gradients on the device",
    )

    def __post_init__(self) -> None:
        self.require("gradients", self.gradients in ("bf16", "fp32"), "bf16 or fp32")

    def loading(self, model: nn.Module) -> dict[str, Any]:
        return {"dtype": torch.bfloat16}

    @property
    def reads_weights(self) -> bool:
        return False  # they come in bf16

    def refused_on(self, sharing: Sharing) -> str | None:
        if self.gradients == "bf16":
            return None
        return (
            "torch adds gradients up over devices in the type of the weights, so that the sums would not be in fp32. Write "
            "gradients: bf16 (master_weights.gradients)."
        )

    def prepare(self, model: nn.Module) -> nn.Module:
        device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
        check_bf16(device)
        return narrow_(model, torch.bfloat16)

    def seams(self, context: Context) -> Seams:
        def stepping(make: MakeOptimizer) -> MakeOptimizer:
            return on_masters(make, torch.float32 if self.gradients == "fp32" else None)

        def forward(_batch: Batch) -> AbstractContextManager[Any]:
            return torch.autocast(context.device.type, dtype=torch.bfloat16)

        return Seams(stepping=stepping, forward=forward)
