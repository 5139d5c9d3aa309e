"""Sharpness-aware minimisation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from snugfit.core.gradients import Gradients
from snugfit.core.losses import couples_rows
from snugfit.core.technique import (
    Card,
    Compute,
    Context,
    Family,
    GradientsOf,
    Seams,
    Stage,
    Technique,
)
from snugfit.errors import SettingError
from snugfit.kit.batch_norm import has_batch_norm
from snugfit.kit.optimizers.foreach import copy_, global_norm, gradients_of, scale_
from snugfit.kit.sharded_tensors import own_parts


@contextmanager
def perturbed(parameters: Sequence[nn.Parameter], rho: float, adaptive: bool = False) -> Iterator[None]:
    """Temporarily put parameters at the worst point within `rho`; on exit they are restored bit for bit.

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
    copies = [parameter.detach().clone() for parameter in moved]
    try:
        # in a function of its own, so that the second pass does not hold the gradients of the first
        _move(moved, copies, rho, adaptive)
        yield
    finally:
        with torch.no_grad():
            copy_(moved, copies)


@torch.no_grad()
def _move(parameters: Sequence[nn.Parameter], copies: Sequence[Tensor], rho: float, adaptive: bool) -> None:
    directions = gradients_of(parameters)
    if adaptive:
        directions = [g * copy.abs() for g, copy in zip(directions, copies, strict=True)]
    scale = rho / (global_norm(directions) + 1e-12)
    parts = (own_parts(tensors) for tensors in (parameters, directions, copies))
    for parameter, direction, copy in zip(*parts, strict=True):
        step = direction * scale.to(direction.dtype)
        parameter.add_(step * copy.abs() if adaptive else step)


@dataclass(frozen=True)
class SAM(Technique):
    """Take the gradient at the worst point of a small neighbourhood of the weights.

    With `m` (m-SAM) each group of `m` neighbouring rows of the window has a worst point of its own, and the gradients found
    there are averaged by weight. A group is a window of its own to what is inside: its hardest examples are kept, and a
    gradient cache contrasts its rows with each other.
    """

    rho: float = 0.05
    adaptive: bool = False
    m: int | None = None

    card: ClassVar[Card] = Card(
        name="sam",
        summary="Seeks flat minima: takes the gradient where the loss is worst within a small distance.",
        aliases=("sharpness-aware minimization",),
        family=Family.LEARNING,
        source="Foret et al. 2021, arXiv:2010.01412; adaptive: Kwon et al. 2021, arXiv:2102.11600; "
        "m-SAM: Andriushchenko & Flammarion 2022, arXiv:2206.06232",
        seams=("gradients",),
        stages=(Stage.PERTURB,),
        cost="a second forward and backward an update; one copy of the weights meanwhile, with m one of the gradients too",
        use_when="generalisation matters more than training time; 0.05 plain, 0.5 to 2 adaptive; m of 16 to 128",
    )

    def __post_init__(self) -> None:
        self.require_positive("rho")
        self.require("m", self.m is None or self.m >= 1, "at least 1")

    @classmethod
    def example(cls) -> Self:
        return cls(rho=0.2)

    def seams(self, context: Context) -> Seams:
        if self.m is not None and context.loss is not None and couples_rows(context.loss):
            raise SettingError(
                "sam.m",
                f"the loss compares the rows of a window with each other, and groups of {self.m} would show it parts of "
                "the window: fewer negatives, another loss",
                "Remove m.",
            )
        if self.m == 1 and has_batch_norm(context.model):
            raise SettingError(
                "sam.m",
                "is 1, and the model has batch norm, which has no statistics of one row",
                "Give at least 2.",
            )
        parameters = list(context.model.parameters())

        def gradients(next: GradientsOf) -> GradientsOf:
            def at_worst_point(compute: Compute) -> Gradients:
                first = next(compute)
                if not first.usable():
                    return first
                with perturbed(parameters, self.rho, self.adaptive):
                    second = next(compute)
                return replace(second, loss=first.loss)

            def by_groups(compute: Compute) -> Gradients:
                if self.m is None or compute.batch.total <= self.m:
                    return at_worst_point(compute)
                _check_groups(self.m, compute.batch.group)
                return _averaged(parameters, map(at_worst_point, compute.parts(self.m)))

            return by_groups

        return Seams(gradients=gradients)


def _check_groups(m: int, together: int) -> None:
    if m % together:
        raise SettingError(
            "sam.m",
            f"is {m}, and examples are mixed in groups of {together}, which stay together",
            f"Give a multiple of {together}.",
        )


def _averaged(parameters: Sequence[nn.Parameter], groups: Iterable[Gradients]) -> Gradients:
    """Return the mean of the groups' gradients by their weights, left in `.grad`; each is added up before the next is asked for."""
    sums: dict[nn.Parameter, Tensor] = {}
    loss = nonfinite = torch.zeros(())
    weight: Tensor | float = 0.0
    for group in groups:
        loss, nonfinite = group.loss * group.weight + loss, group.nonfinite + nonfinite
        weight = group.weight + weight
        for parameter in parameters:
            if parameter.grad is not None:
                added = parameter.grad * group.weight
                sums[parameter] = sums[parameter].add_(added) if parameter in sums else added
    divisor = torch.where(weight > 0, weight, 1.0) if isinstance(weight, Tensor) else weight or 1.0
    scale_(list(sums.values()), 1.0 / divisor)
    for parameter in parameters:
        parameter.grad = sums.get(parameter)
    return Gradients(loss / divisor, weight, nonfinite)
