"""Lion: the sign of the momentum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from snugfit.core.parameters import ParameterGroup
from snugfit.core.technique import Card, Context, Family, Seams, Technique
from snugfit.kit.optimizers.foreach import add_, gradients_of, lerp, lerp_, scale_, sign_
from snugfit.kit.optimizers.parameter_walk import OwnOptimizer


def lion_(
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    moments: Sequence[Tensor],
    learning_rate: float,
    betas: tuple[float, float] = (0.9, 0.99),
    weight_decay: float = 0.0,
    epsilon: float = 0.0,
) -> None:
    """Update the parameters and their moments once, in place.

    Args:
        moments: one for each parameter, of its shape and dtype; zeros at first.
        epsilon: a step is smaller than the rate where the momentum is smaller than this; 0 is the paper's sign.

    >>> weight, moment = torch.tensor([1.0, 1.0, 1.0]), torch.zeros(3)
    >>> lion_([weight], [torch.tensor([5.0, 0.0, -0.1])], [moment], learning_rate=0.25)
    >>> weight
    tensor([0.7500, 1.0000, 1.2500])

    Source: Chen et al. 2023, arXiv:2302.06675, algorithm 2.
    """
    directions = lerp(moments, gradients, 1 - betas[0])
    sign_(directions, epsilon)
    lerp_(moments, gradients, 1 - betas[1])
    if weight_decay:
        scale_(parameters, 1 - learning_rate * weight_decay)
    add_(parameters, directions, -learning_rate)


@dataclass(frozen=True)
class Lion(Technique):
    """Steps of one size in each element, with decoupled weight decay; vectors are not decayed."""

    learning_rate: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.99)
    epsilon: float = 0.0
    weight_decay: float = 0.1

    card: ClassVar[Card] = Card(
        name="lion",
        summary="Steps by the sign of the momentum: half the state of Adam.",
        family=Family.LEARNING,
        source="Chen et al. 2023, arXiv:2302.06675",
        seams=("optimizer",),
        cost="one state a parameter: 4 bytes in float32",
        use_when="large windows; a third to a tenth of AdamW's rate, and as many times its decay",
    )

    def __post_init__(self) -> None:
        self.require_positive("learning_rate")
        self.require_betas("betas")
        self.require_not_negative("epsilon", "weight_decay")

    @classmethod
    def example(cls) -> Self:
        # some gradients are nothing but rounding, such as a key bias's, and the sign of that depends on the micro-batch
        return cls(learning_rate=0.01, epsilon=1e-6)

    def seams(self, context: Context) -> Seams:
        def optimizer(groups: list[ParameterGroup]) -> torch.optim.Optimizer:
            return _LionOptimizer(groups, self)

        return Seams(optimizer=optimizer)


class _LionOptimizer(OwnOptimizer):
    """Our own, as that of pytorch_optimizer has no epsilon: its update would depend on the micro-batch."""

    by_element = True

    def __init__(self, groups: list[ParameterGroup], settings: Lion) -> None:
        defaults = {
            "lr": settings.learning_rate,
            "betas": settings.betas,
            "eps": settings.epsilon,
            "weight_decay": settings.weight_decay,
        }
        super().__init__(groups, defaults)

    def update(self, group: ParameterGroup, parameters: list[nn.Parameter]) -> None:
        for parameter in parameters:
            if not self.state[parameter]:
                self.state[parameter]["moment"] = torch.zeros_like(parameter)
        lion_(
            parameters,
            gradients_of(parameters),
            [self.state[parameter]["moment"] for parameter in parameters],
            group["lr"],
            group["betas"],
            group["weight_decay"],
            group["eps"],
        )
