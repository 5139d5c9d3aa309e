"""Sharpness-aware minimisation."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import nn

from snugfit.core.foreach import copy_, global_norm
from snugfit.core.gradients import Gradients
from snugfit.core.technique import Card, Compute, Context, Family, GradientsOf, Seams, Stage, Technique


@contextmanager
def perturbed(parameters: Sequence[nn.Parameter], rho: float, adaptive: bool = False) -> Iterator[None]:
    """Within, parameters stand at the worst point within `rho`; on exit they are restored bit for bit.

    The step is `rho * g / |g|`, or with `adaptive` `rho * |w|^2 g / ||w| g|` elementwise, for the gradients in
    `.grad`.

    >>> weight = nn.Parameter(torch.tensor([1.0, 1.0]))
    >>> weight.grad = torch.tensor([0.6, 0.8])
    >>> with perturbed([weight], rho=0.5):
    ...     print([round(value, 6) for value in weight.tolist()])
    [1.3, 1.4]
    >>> weight.tolist()
    [1.0, 1.0]

    Source: Foret et al. 2021, arXiv:2010.01412; adaptive: Kwon et al. 2021, arXiv:2102.11600. Restores from
    copies: subtraction would leave rounding behind.
    """
    moved = [parameter for parameter in parameters if parameter.grad is not None]
    with torch.no_grad():
        copies = [parameter.detach().clone() for parameter in moved]
        directions = [parameter.grad for parameter in moved if parameter.grad is not None]
        if adaptive:
            directions = [g * copy.abs() for g, copy in zip(directions, copies, strict=True)]
        scale = rho / (global_norm(directions) + 1e-12)
    try:
        with torch.no_grad():
            for parameter, direction, copy in zip(moved, directions, copies, strict=True):
                step = direction * scale.to(direction.dtype)
                parameter.add_(step * copy.abs() if adaptive else step)
        yield
    finally:
        with torch.no_grad():
            copy_(moved, copies)


@dataclass(frozen=True)
class SAM(Technique):
    """Take the gradient at the worst point of a small neighbourhood of the weights."""

    rho: float = 0.05
    adaptive: bool = False

    card: ClassVar[Card] = Card(
        name="sam",
        summary="Seeks flat minima: takes the gradient where the loss is worst within a small distance.",
        family=Family.LEARNING,
        source="Foret et al. 2021, arXiv:2010.01412; adaptive: Kwon et al. 2021, arXiv:2102.11600",
        seams=("gradients",),
        stages=(Stage.PERTURB,),
        cost="a second forward and backward an update; one copy of the weights meanwhile",
        use_when="generalisation matters more than training time; 0.05 plain, 0.5 to 2 adaptive",
    )

    def __post_init__(self) -> None:
        self.require("rho", 0 < self.rho < math.inf, "positive")

    @classmethod
    def example(cls) -> Self:
        return cls(rho=0.2)

    def seams(self, context: Context) -> Seams:
        def gradients(next: GradientsOf) -> GradientsOf:
            def at_worst_point(compute: Compute) -> Gradients:
                first = next(compute)
                if not first.usable():
                    return first
                with perturbed(list(context.model.parameters()), self.rho, self.adaptive):
                    second = next(compute)
                return replace(second, loss=first.loss)

            return at_worst_point

        return Seams(gradients=gradients)
