"""Gradients on the host: each leaves the device as soon as backward has made it, and is added up there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from snugfit.core.gradients import HostGradients
from snugfit.core.parameters import ParameterGroup
from snugfit.core.technique import (
    ONE_MEMORY,
    Card,
    Context,
    Family,
    MakeOptimizer,
    Seams,
    Sharing,
    Stage,
    Technique,
)
from snugfit.kit.optimizers.one_by_one import ShadowOptimizer


def with_gradients_of(sums: HostGradients, optimizer: torch.optim.Optimizer) -> ShadowOptimizer:
    """Return an optimizer that makes the step of `optimizer` by gradients on the host.

    Args:
        sums: of no parameter yet; those of the optimizer are taken in.
        optimizer: made of the parameters, without a state yet; or one that steps them elsewhere or in another type.

    >>> model, sums = torch.nn.Linear(2, 1), HostGradients()
    >>> optimizer = with_gradients_of(sums, torch.optim.SGD(model.parameters(), lr=1.0))
    >>> with sums.taking():
    ...     (model(torch.ones(1, 2)) - model.weight.sum()).backward()
    >>> model.bias.grad is None, sums.of(model.bias)
    (True, tensor([1.]))
    """
    shadow = optimizer if isinstance(optimizer, ShadowOptimizer) else ShadowOptimizer(optimizer)
    sums.bear(shadow.shadows)
    shadow.gradient_of = sums.of
    return shadow


_GONE = "gradient_offload has gradients on the host alone, and {}. Remove one."


@dataclass(frozen=True)
class GradientOffload(Technique):
    """Let each gradient leave the device during backward, and add micro-batches up in host memory."""

    card: ClassVar[Card] = Card(
        name="gradient_offload",
        summary="Moves each gradient to host memory as backward makes it, and adds them up there.",
        aliases=("gradient offloading",),
        family=Family.PLACEMENT,
        source="Ren et al. 2021, arXiv:2101.06840 (ZeRO-Offload)",
        seams=("sums", "stepping"),
        stages=(Stage.GRADIENTS,),
        refuses={
            Stage.UNIT: _GONE.format("this compares them with the weights on the device"),
            Stage.NOISE: _GONE.format("this draws on the device"),
            Stage.PERTURB: _GONE.format("this moves the weights on the device by them"),
            Stage.WHEN: _GONE.format(
                "this has used each up in backward, so that none is left to be added up"
            ),
            Sharing.COPIES: "devices add gradients up before they leave. Remove it, or spread the weights over devices that keep "
            "them on their hosts (plan.strategy: fsdp-offload).",
            Sharing.SHARDS: "plan.strategy: fsdp-offload keeps the gradients of each device on its host. Use that instead.",
        },
        conflicts={
            "schedule_free": "it works out the weights to evaluate from its own state beside the gradients on the device. Remove "
            "one, or use adamw.",
        },
        not_on=ONE_MEMORY,
        saves_memory=True,
        cost="saves the gradients: 4 bytes a parameter in float32, which go over the bus with each micro-batch; one more wait a window",
        use_when="with optimizer_offload, where weights fit the device and gradients beside them do not",
    )

    def seams(self, context: Context) -> Seams:
        sums = HostGradients()

        def stepping(make: MakeOptimizer) -> MakeOptimizer:
            def with_sums(groups: list[ParameterGroup]) -> torch.optim.Optimizer:
                return with_gradients_of(sums, make(groups))

            return with_sums

        return Seams(sums=sums, stepping=stepping)
