"""The loss of a model of several members: the mean of theirs, while they train; in the unit of what is learned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from snugfit.core.batch import labels_of
from snugfit.core.loss_terms import LossTerms
from snugfit.core.losses import cross_entropy, logits_of, mse


@dataclass(frozen=True)
class MemberCrossEntropy:
    """Cross-entropy of logits (rows, classes), or of those of each member, (rows, members, classes), with labels (rows,).

    Each member learns the label by itself: the loss of their mean would let one lean on another.

    Source: Gorishniy et al. 2024, arXiv:2410.24210, section 3.1.
    """

    def __call__(self, outputs: Any, data: Any) -> LossTerms:
        logits = logits_of(outputs)
        return cross_entropy(logits, {"labels": _of_members(labels_of(data), logits, 2)})


@dataclass(frozen=True)
class MemberSquaredError:
    """Squared error of numbers (rows,), or of those of each member, (rows, members), in units of `spread`."""

    spread: float

    def __call__(self, outputs: Any, data: Any) -> LossTerms:
        numbers = logits_of(outputs)
        labels = _of_members(labels_of(data), numbers, 1)
        return mse(numbers.float() / self.spread, {"labels": labels.float() / self.spread})


def _of_members(labels: Tensor, outputs: Tensor, dimensions: int) -> Tensor:
    """Return the labels, for each member where the outputs have some."""
    return labels if outputs.ndim == dimensions else labels.unsqueeze(1).expand(outputs.shape[:2])
