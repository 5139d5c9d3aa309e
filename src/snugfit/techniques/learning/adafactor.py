"""Adafactor: a second moment in rows and columns instead of elements."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from snugfit.core.parameters import ParameterGroup
from snugfit.core.technique import Card, Context, Family, Seams, Technique
from snugfit.kit.optimizers.parameter_walk import OwnOptimizer


def empty_moments(parameter: Tensor) -> dict[str, Tensor]:
    """Zeros for `second_moment_`: one number a row and a column of the last two dims, or one an element of a vector."""
    if parameter.ndim < 2:
        return {"elements": torch.zeros_like(parameter)}
    return {
        "rows": torch.zeros_like(parameter[..., :1]),
        "columns": torch.zeros_like(parameter[..., :1, :]),
    }


def second_moment_(
    moments: dict[str, Tensor], gradient: Tensor, weight: float, epsilon: float = 1e-30
) -> Tensor:
    """Move the moments by `weight` towards the squared gradient, and return the mean square of each element.

    >>> gradient = torch.tensor([[1.0, 2.0], [2.0, 4.0]])
    >>> second_moment_(empty_moments(gradient), gradient, weight=1.0)
    tensor([[ 1.,  4.],
            [ 4., 16.]])
    """
    square = gradient.square().add_(epsilon)
    if "elements" in moments:
        return moments["elements"].lerp_(square, weight)
    rows = moments["rows"].lerp_(square.mean(dim=-1, keepdim=True), weight)
    columns = moments["columns"].lerp_(square.mean(dim=-2, keepdim=True), weight)
    # where a whole row and a whole column have no gradient, epsilon times epsilon is below any number, and 0 / 0 would be NaN
    return (rows / rows.mean(dim=-2, keepdim=True) * columns).clamp_(min=torch.finfo(rows.dtype).tiny)


def root_mean_square(tensor: Tensor) -> Tensor:
    """Return a scalar on the tensor's device: nothing is read.

    >>> root_mean_square(torch.tensor([3.0, -4.0, 0.0, 5.0])) ** 2
    tensor(12.5000)
    """
    norm: Tensor = torch.linalg.vector_norm(tensor)
    return norm / math.sqrt(tensor.numel())


@dataclass(frozen=True)
class Adafactor(Technique):
    """Clipped steps, relative to the size of the weights, with next to no state; vectors are not decayed."""

    learning_rate: float = 1e-2
    relative: bool = True
    decay_power: float = 0.8
    clip: float = 1.0
    epsilon: float = 1e-30
    smallest: float = 1e-3
    weight_decay: float = 0.0

    card: ClassVar[Card] = Card(
        name="adafactor",
        summary="Adam without a momentum, its second moment kept in rows and columns: almost no state.",
        family=Family.LEARNING,
        source="Shazeer & Stern 2018, arXiv:1804.04235",
        seams=("optimizer",),
        cost="one state a row and one a column of each matrix; one an element of vectors",
        use_when="the states of AdamW do not fit; T5 and its kin",
    )

    def __post_init__(self) -> None:
        self.require_positive("learning_rate", "clip", "epsilon", "smallest")
        self.require("decay_power", 0 < self.decay_power <= 1, "in (0, 1]")
        self.require_not_negative("weight_decay")

    @classmethod
    def example(cls) -> Self:
        # some gradients are nothing but rounding, such as a key bias's: epsilon keeps them small
        return cls(learning_rate=0.05, epsilon=1e-14, smallest=0.01, weight_decay=0.1)

    def seams(self, context: Context) -> Seams:
        def optimizer(groups: list[ParameterGroup]) -> torch.optim.Optimizer:
            return _AdafactorOptimizer(groups, self)

        return Seams(optimizer=optimizer)


class _AdafactorOptimizer(OwnOptimizer):
    """Our own: torch's reads two numbers of each parameter, for each of which a device waits, and has a schedule in it.

    One parameter at a time, so that there is never more than one whole second moment.
    """

    def __init__(self, groups: list[ParameterGroup], settings: Adafactor) -> None:
        defaults = asdict(settings)
        super().__init__(groups, {"lr": defaults.pop("learning_rate"), **defaults})

    def update(self, group: ParameterGroup, parameters: list[nn.Parameter]) -> None:
        for parameter in parameters:
            assert parameter.grad is not None
            _update(parameter, parameter.grad, self.state[parameter], group)


def _update(parameter: Tensor, gradient: Tensor, state: dict[str, Any], group: ParameterGroup) -> None:
    if not state:
        state.update(updates=0, moments=empty_moments(parameter))
    state["updates"] += 1
    weight = state["updates"] ** -group["decay_power"]
    step = second_moment_(state["moments"], gradient, weight, group["epsilon"]).rsqrt().mul_(gradient)
    step.div_((root_mean_square(step) / group["clip"]).clamp_(min=1.0))
    if group["relative"]:
        step.mul_(root_mean_square(parameter).clamp_(min=group["smallest"]))
    if group["weight_decay"]:
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
    parameter.sub_(step, alpha=group["lr"])
