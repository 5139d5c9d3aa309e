"""Annealed Gaussian noise on the gradient."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from snugfit.core.technique import Card, Context, Family, Moment, Seams, Stage, Technique
from snugfit.kit.optimizers.foreach import gradients_of
from snugfit.kit.sharded_tensors import own_part, sharded_like


def noise_variance(updates: int, eta: float, gamma: float = 0.55) -> float:
    """`eta / (1 + updates) ** gamma`.

    >>> noise_variance(updates=3, eta=0.5, gamma=0.5)
    0.25
    """
    return eta / math.pow(1 + updates, gamma)


def add_noise_(gradients: Sequence[Tensor], variance: float, generator: torch.Generator) -> None:
    """Add Gaussian noise of that variance to each element in place; `generator` is on the gradients' device.

    Of a gradient that is spread over devices each rank draws the noise of all, and adds its part.

    >>> gradient = torch.zeros(3)
    >>> add_noise_([gradient], variance=4.0, generator=torch.Generator().manual_seed(0))
    >>> bool((gradient == 2 * torch.randn(3, generator=torch.Generator().manual_seed(0))).all())
    True
    """
    for gradient in gradients:
        dtype = torch.promote_types(gradient.dtype, torch.float32)  # 16 bit would draw other numbers
        noise = torch.randn(gradient.shape, generator=generator, dtype=dtype, device=gradient.device)
        own = own_part(sharded_like(gradient, noise))
        own_part(gradient).add_(own.mul_(math.sqrt(variance)).to(gradient.dtype))


@dataclass(frozen=True)
class GradientNoise(Technique):
    """Add Gaussian noise to the gradient, of variance `eta / (1 + updates) ** gamma`.

    It comes after all clipping, which therefore bounds the gradient and not the noise. The draws are a function of the
    run's seed and the window, so every rank adds the same.
    """

    eta: float = 0.01
    gamma: float = 0.55

    card: ClassVar[Card] = Card(
        name="gradient_noise",
        summary="Adds Gaussian noise to the gradient, less and less of it, to leave bad regions early in training.",
        family=Family.LEARNING,
        source="Neelakantan et al. 2015, arXiv:1511.06807",
        seams=("adjust",),
        stages=(Stage.NOISE,),
        cost="one random number for each weight",
        use_when="very deep or badly initialised nets; 0.01, 0.3 or 1.0",
    )

    def __post_init__(self) -> None:
        self.require_positive("eta")
        self.require_not_negative("gamma")

    @classmethod
    def example(cls) -> Self:
        return cls(eta=0.01)

    def seams(self, context: Context) -> Seams:
        def adjust(parameters: Sequence[nn.Parameter], moment: Moment) -> Mapping[str, Tensor]:
            variance = noise_variance(moment.updates, self.eta, self.gamma)
            add_noise_(gradients_of(parameters), variance, moment.generator(context.device))
            return {}

        return Seams(adjust=adjust)
