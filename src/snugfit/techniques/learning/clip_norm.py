"""Clip the global norm of the true gradient."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from snugfit.core.technique import Card, Context, Family, Moment, Seams, Stage, Technique
from snugfit.kit.optimizers.foreach import global_norm, gradients_of, scale_


def clip_norm_(parameters: Iterable[nn.Parameter], max_norm: float) -> Tensor:
    """Scale gradients in place so that their global L2 norm is at most `max_norm`.

    Args:
        max_norm: in the units of the true (unscaled) gradient, positive.
    Returns:
        Norm before clipping: scalar on the gradients' device, float32 at least.
    Source: Pascanu et al. 2013, arXiv:1211.5063. Accumulates in float32, and leaves a gradient within the
    bound bit for bit alone, unlike torch's, which multiplies by 1 / (1 + 1e-6 / norm).

    >>> weight = nn.Parameter(torch.zeros(2))
    >>> weight.grad = torch.tensor([3.0, 4.0])
    >>> float(clip_norm_([weight], max_norm=1.0))
    5.0
    >>> [round(value, 6) for value in weight.grad.tolist()]
    [0.6, 0.8]
    """
    gradients = gradients_of(parameters)
    norm = global_norm(gradients)
    scale_(gradients, torch.clamp(max_norm / norm, max=1.0))
    return norm


def clip_measured_(parameters: Iterable[nn.Parameter], max_norm: float, norm: float) -> Tensor:
    """Do what `clip_norm_` does with gradients of a known norm: those within the bound are not touched.

    >>> weight = nn.Parameter(torch.zeros(2))
    >>> weight.grad = torch.tensor([3.0, 4.0])
    >>> float(clip_measured_([weight], max_norm=2.5, norm=5.0)), weight.grad
    (5.0, tensor([1.5000, 2.0000]))
    """
    gradients = gradients_of(parameters)
    if norm > max_norm:
        scale_(gradients, max_norm / norm)
    widest = [torch.promote_types(each.dtype, torch.float32) for each in gradients[:1]]
    return torch.tensor(norm, dtype=widest[0] if widest else torch.float32)


@dataclass(frozen=True)
class ClipNorm(Technique):
    """Clip the global norm of the gradient of the whole window, before the optimizer."""

    max_norm: float = 1.0

    card: ClassVar[Card] = Card(
        name="clip_norm",
        summary="Bounds the length of each update's gradient, so that one bad batch cannot throw the weights off.",
        aliases=("gradient clipping", "max_grad_norm", "gradient_clip_val"),
        family=Family.LEARNING,
        source="Pascanu et al. 2013, arXiv:1211.5063",
        seams=("adjust",),
        stages=(Stage.NORM,),
        cost="one pass over the gradients",
        use_when="recurrent nets and transformers; 1.0 is the usual bound",
    )

    def __post_init__(self) -> None:
        self.require("max_norm", self.max_norm > 0, "positive")

    @classmethod
    def example(cls) -> Self:
        return cls(max_norm=0.05)

    def seams(self, context: Context) -> Seams:
        def adjust(parameters: Sequence[nn.Parameter], moment: Moment) -> Mapping[str, Tensor]:
            if moment.norm is not None:
                return {"gradient_norm": clip_measured_(parameters, self.max_norm, moment.norm)}
            return {"gradient_norm": clip_norm_(parameters, self.max_norm)}

        return Seams(adjust=adjust, takes_norm=True)
