"""True mixed precision in fp16: weights of the model in fp16 under a loss scale, their masters in fp32 with the optimizer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import nn

from snugfit.core.technique import Card, Context, Family, Fidelity, MakeOptimizer, Seams, Sharing, Stage
from snugfit.kit.optimizers.masters import MASTERS_STEPPED, NARROW_HEAD, narrow_, on_masters
from snugfit.kit.precision.fp16_computing import HalfPrecision


@dataclass(frozen=True)
class FP16MasterWeights(HalfPrecision):
    """Hold the model's matrices in fp16 and compute under fp16 autocast and a loss scale; the optimizer steps masters in fp32 and rounds them.

    Gradients are added up and unscaled in fp32, in which small ones do not vanish. The scale is that of `torch.amp.GradScaler`.
    """

    card: ClassVar[Card] = Card(
        name="fp16_master_weights",
        summary="Weights in fp16 under a dynamic loss scale, masters and states in fp32 with the optimizer; norms stay in fp32.",
        family=Family.NUMERICS,
        source="Micikevicius et al. 2018, arXiv:1710.03740; Ren et al. 2021, arXiv:2101.06840",
        seams=("stepping", "scale", "forward"),
        stages=(Stage.NARROW, Stage.SHADOW),
        fidelity=Fidelity.MIXED,
        needs="float16",
        precision=True,
        conflicts={
            "fp32_logits": NARROW_HEAD,
            "schedule_free": MASTERS_STEPPED,
        },
        refuses=dict.fromkeys(
            Sharing,
            "torch adds gradients up over devices in the type of the weights, in which small ones vanish. Use "
            "plan.numerics: fp16, or master_weights where the devices have bf16.",
        ),
        saves_memory=True,
        cost="18 bytes a parameter with AdamW, of which 12 are the optimizer's; about half of the activations; a few windows lost",
        use_when="GPUs older than Ampere, with optimizer_offload and gradient_offload: 2 bytes a parameter on the device",
    )

    @classmethod
    def example(cls) -> Self:
        # what blocks hand back is in fp16 too, and has its last bits at a scale that is lowered a few times
        return cls(initial_scale=1024.0, growth_interval=2)

    def loading(self, model: nn.Module) -> dict[str, Any]:
        return {"dtype": torch.float16}

    @property
    def reads_weights(self) -> bool:
        return False  # they come in fp16

    def prepare(self, model: nn.Module) -> nn.Module:
        self.check_range(model)
        return narrow_(model, torch.float16)

    def seams(self, context: Context) -> Seams:
        def stepping(make: MakeOptimizer) -> MakeOptimizer:
            return on_masters(make, torch.float32)

        return replace(self.computing(context), stepping=stepping)
