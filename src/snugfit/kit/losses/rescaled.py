"""Numbers that a model tells in units of their spread, in their own unit: outputs, loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from snugfit.core.batch import inputs_of, labels_of
from snugfit.core.loss_terms import LossTerms
from snugfit.core.losses import logits_of, mse


@dataclass(frozen=True)
class Rescaled:
    """The forward of a model with one output a row, of shape (rows,), in the unit of the labels: a new model says about 0, which is their mean.

    Args:
        middle, spread: mean and deviation of the labels to train on.
    """

    middle: float
    spread: float

    def __call__(self, model: nn.Module, data: Any) -> Tensor:
        args, kwargs = inputs_of(data)
        return logits_of(model(*args, **kwargs)).float().flatten() * self.spread + self.middle


@dataclass(frozen=True)
class RescaledError:
    """Squared error of numbers (rows,) in units of `spread`, so that its size does not hang on the unit of the labels."""

    spread: float
    no_cross_entropy: ClassVar[tuple[str, str]] = ("a squared error", "mae")

    def __call__(self, outputs: Any, data: Any) -> LossTerms:
        numbers = logits_of(outputs) / self.spread
        return mse(numbers, {"labels": labels_of(data) / self.spread})
