"""The optimizer's step in the backward: each parameter is updated as soon as its gradient is whole, and the gradient freed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from snugfit.core.gradients import Gradients
from snugfit.core.parameters import ParameterGroup
from snugfit.core.technique import (
    Card,
    Compute,
    Context,
    Family,
    GradientsOf,
    MakeOptimizer,
    Seams,
    Sharing,
    Stage,
    Technique,
)
from snugfit.kit.optimizers.one_by_one import stepper


@contextmanager
def stepping_in_backward(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Temporarily let a backward update each parameter as soon as its gradient is there, and free the gradient.

    To be entered around one backward. `optimizer.step()` afterwards finds no gradient: it ends the update for optimizers that
    count their steps.

    >>> model = nn.Linear(2, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    >>> with stepping_in_backward(optimizer):
    ...     (model(torch.ones(1, 2)) - model.bias).backward()
    >>> model.weight.grad is None
    True

    Source: Lv et al. 2023, arXiv:2306.09782; torch.Tensor.register_post_accumulate_grad_hook.
    """
    step = stepper(optimizer)

    def take(parameter: nn.Parameter) -> None:
        step(parameter)
        parameter.grad = None

    trained = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    hooks = [parameter.register_post_accumulate_grad_hook(take) for parameter in trained]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


_WHOLE = "optimizer_in_backward updates each weight before the whole gradient is known, and {}. Remove one."


@dataclass(frozen=True)
class OptimizerInBackward(Technique):
    """Update each parameter in the last backward of a window, so that the gradients of the model never stand there whole."""

    card: ClassVar[Card] = Card(
        name="optimizer_in_backward",
        summary="Updates each parameter as soon as its gradient is whole, and frees the gradient.",
        aliases=("LOMO", "fused backward optimizer", "per-parameter updates in backward"),
        family=Family.PLACEMENT,
        source="Lv et al. 2023, arXiv:2306.09782 (LOMO); torchtune's optimizer_in_bwd",
        seams=("stepping", "gradients"),
        stages=(Stage.BACKEND, Stage.WHEN),
        irrevocable=True,
        refuses={
            "adjust": _WHOLE.format("this looks at the gradient as a whole and changes it"),
            "accept": _WHOLE.format("this may refuse the update afterwards"),
            "scale": _WHOLE.format(
                "too high a scale shows in the gradients alone; use bf16, which needs none"
            ),
            Stage.PERTURB: _WHOLE.format("this computes the gradient twice for one update"),
            Sharing.COPIES: "each would update its copy by the gradient of its own rows, before that is added up over devices. Remove "
            "it, or spread the weights (fsdp), where gradients are added up first.",
        },
        saves_memory=True,
        cost="saves the gradients: 4 bytes a parameter in float32, with one micro-batch; one more wait for the device a window",
        use_when="full training in one micro-batch, where gradients and states together do not fit",
    )

    def seams(self, context: Context) -> Seams:
        made: list[torch.optim.Optimizer] = []

        def stepping(make: MakeOptimizer) -> MakeOptimizer:
            def make_and_hold(groups: list[ParameterGroup]) -> torch.optim.Optimizer:
                made[:] = [make(groups)]
                return made[0]

            return make_and_hold

        def gradients(next: GradientsOf) -> GradientsOf:
            def in_backward(compute: Compute) -> Gradients:
                step = stepper(made[0])

                def take(parameter: nn.Parameter) -> None:
                    step(parameter)
                    parameter.grad = None

                return next(compute.handing(take))

            return in_backward

        return Seams(stepping=stepping, gradients=gradients)
