"""MADGRAD: dual averaging with an adaptive rate and momentum."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from snugfit.core.parameters import ParameterGroup
from snugfit.core.technique import Card, Context, Family, Seams, Technique
from snugfit.kit.optimizers.parameter_walk import OwnOptimizer


def empty_sums(parameter: Tensor) -> dict[str, Tensor]:
    """Return what `madgrad_` keeps of a parameter: where it started, and sums of its gradients and of their squares."""
    return {
        "start": parameter.detach().clone(),
        "gradients": torch.zeros_like(parameter),
        "squares": torch.zeros_like(parameter),
    }


def madgrad_(
    parameter: Tensor,
    gradient: Tensor,
    sums: dict[str, Tensor],
    weight: float,
    momentum: float = 0.9,
    epsilon: float = 1e-6,
) -> None:
    """Update a parameter and its sums once, in place.

    Args:
        weight: of this gradient in the sums: the learning rate times the root of the number of the update, from 1.

    >>> parameter = torch.tensor([1.0, 1.0])
    >>> sums = empty_sums(parameter)
    >>> madgrad_(parameter, torch.tensor([8.0, -1.0]), sums, weight=0.001, momentum=0.5, epsilon=1e-12)
    >>> parameter
    tensor([0.9900, 1.0050])

    Source: Defazio & Jelassi 2021, arXiv:2101.11075, algorithm 1.
    """
    sums["gradients"].add_(gradient, alpha=weight)
    sums["squares"].addcmul_(gradient, gradient, value=weight)
    divisor = sums["squares"].pow(1 / 3).add_(epsilon)
    goal = torch.addcdiv(sums["start"], sums["gradients"], divisor, value=-1.0)
    parameter.lerp_(goal, 1 - momentum)


@dataclass(frozen=True)
class MADGRAD(Technique):
    """Dual averaging of all gradients so far, over the cube root of their squares, from where training began; vectors are not decayed."""

    learning_rate: float = 1e-2
    momentum: float = 0.9
    epsilon: float = 1e-6
    weight_decay: float = 0.0

    card: ClassVar[Card] = Card(
        name="madgrad",
        summary="Adaptive steps from where training began, along the sum of all gradients.",
        family=Family.LEARNING,
        source="Defazio & Jelassi 2021, arXiv:2101.11075",
        seams=("optimizer",),
        cost="three states a parameter: 12 bytes in float32; stepped on part of a weight, equal to one unit in the last place",
        use_when="long runs from scratch, where SGD is good but its rate is tedious to find",
    )

    def __post_init__(self) -> None:
        self.require_positive("learning_rate", "epsilon")
        self.require("momentum", 0 <= self.momentum < 1, "in [0, 1)")
        self.require_not_negative("weight_decay")

    @classmethod
    def example(cls) -> Self:
        return cls(learning_rate=0.02, momentum=0.6, weight_decay=0.1)

    def seams(self, context: Context) -> Seams:
        def optimizer(groups: list[ParameterGroup]) -> torch.optim.Optimizer:
            return _MadgradOptimizer(groups, self)

        return Seams(optimizer=optimizer)


class _MadgradOptimizer(OwnOptimizer):
    """Our own: that of pytorch_optimizer adds epsilon to the rate, which the paper does not, and the decay to `.grad` itself."""

    by_element = True

    def __init__(self, groups: list[ParameterGroup], settings: MADGRAD) -> None:
        defaults = {
            "lr": settings.learning_rate,
            "momentum": settings.momentum,
            "eps": settings.epsilon,
            "weight_decay": settings.weight_decay,
        }
        super().__init__(groups, defaults)

    def update(self, group: ParameterGroup, parameters: list[nn.Parameter]) -> None:
        for parameter in parameters:
            assert parameter.grad is not None
            _update(parameter, parameter.grad, self.state[parameter], group)


def _update(parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: ParameterGroup) -> None:
    if not state:
        state.update(updates=0, sums=empty_sums(parameter))
    state["updates"] += 1
    if group["weight_decay"]:
        gradient = gradient.add(parameter, alpha=group["weight_decay"])
    weight = group["lr"] * math.sqrt(state["updates"])
    madgrad_(parameter, gradient, state["sums"], weight, group["momentum"], group["eps"])
