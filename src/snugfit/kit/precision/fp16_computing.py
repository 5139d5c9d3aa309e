"""The parts of computing in fp16, whatever type the weights are in: autocast, a loss scale, and a model that suits both."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import nn

from snugfit.core.batch import Batch
from snugfit.core.loss_scale import LossScale
from snugfit.core.technique import Context, Seams, Technique
from snugfit.errors import SettingError
from snugfit.kit.precision.checkpoint_precision import made_in_bf16


def autocast_fp16(device: torch.device) -> AbstractContextManager[Any]:
    """Temporarily compute matrix products on `device` in fp16.

    >>> with autocast_fp16(torch.device("cpu")):
    ...     (torch.ones(1, 1) @ torch.ones(1, 1)).dtype
    torch.float16
    """
    return torch.autocast(device.type, dtype=torch.float16)


@dataclass(frozen=True)
class HalfPrecision(Technique):
    """Techniques that compute in fp16: their settings, and the seams that all of them fill."""

    initial_scale: float = 65536.0
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    force: bool = False

    def __post_init__(self) -> None:
        largest = torch.finfo(torch.float32).max
        self.require("initial_scale", 0 < self.initial_scale <= largest, "positive, and finite in float32")
        self.require("growth_factor", 1 < self.growth_factor < math.inf, "above 1")
        self.require("backoff_factor", 0 < self.backoff_factor < 1, "between 0 and 1")
        self.require("growth_interval", self.growth_interval >= 1, "at least 1")

    @classmethod
    def example(cls) -> Self:
        return cls(initial_scale=256.0, growth_interval=2)

    def check_range(self, model: nn.Module) -> None:
        """Refuse a model that was made in bf16, unless forced.

        Raises:
            SettingError: what it computes may exceed the range of fp16.
        """
        if not self.force and made_in_bf16(model):
            raise SettingError(
                "plan.numerics",
                "the weights of this model were made in bf16, whose numbers go up to 3e38: what such a model computes "
                "may exceed 65504, the largest number of fp16, and its loss is then infinite at any scale",
                "Use plan.numerics: bf16, or fp32 on a device without it; or try all the same: numerics: "
                f"{{{self.card.name}: {{force: true}}}}.",
            )

    def computing(self, context: Context) -> Seams:
        """Autocast around forward and loss, and the loss scale."""
        if not torch.amp.is_autocast_available(context.device.type):
            raise SettingError(
                "plan.numerics",
                f"fp16 needs autocast, which {context.device} does not have",
                "Use plan.numerics: fp32.",
            )
        scale = LossScale(self.initial_scale, self.growth_factor, self.backoff_factor, self.growth_interval)

        def forward(_batch: Batch) -> AbstractContextManager[Any]:
            return autocast_fp16(context.device)

        return Seams(scale=scale, forward=forward, state=scale)
