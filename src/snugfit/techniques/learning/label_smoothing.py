"""Label smoothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from snugfit.core.batch import Batch
from snugfit.core.losses import LossTerms, logits_of
from snugfit.core.technique import BatchLoss, Card, Context, Family, Seams, Stage, Technique
from snugfit.errors import SettingError


def uniform_cross_entropy(logits: Tensor) -> Tensor:
    """Cross-entropy of logits (..., classes) with the uniform distribution, shape (...), in float32 at least.

    >>> uniform_cross_entropy(torch.zeros(1, 4))
    tensor([1.3863])
    """
    wide = torch.promote_types(logits.dtype, torch.float32)
    return -F.log_softmax(logits, dim=-1, dtype=wide).mean(dim=-1)


@dataclass(frozen=True)
class LabelSmoothing(Technique):
    """Replace hard labels by (1 - epsilon) of the label and epsilon of the uniform distribution."""

    epsilon: float = 0.1

    card: ClassVar[Card] = Card(
        name="label_smoothing",
        summary="Softens the labels, so that the model does not grow over-confident.",
        family=Family.LEARNING,
        source="Szegedy et al. 2016, arXiv:1512.00567",
        seams=("loss",),
        stages=(Stage.SMOOTH,),
        cost="one log-softmax over the logits",
        use_when="classification, and the probabilities should be calibrated; 0.1 is usual",
    )

    def __post_init__(self) -> None:
        self.require("epsilon", 0 < self.epsilon < 1, "in (0, 1)")

    @classmethod
    def example(cls) -> Self:
        return cls(epsilon=0.3)

    def seams(self, context: Context) -> Seams:
        def loss(next: BatchLoss) -> BatchLoss:
            def smoothed(outputs: Any, batch: Batch) -> LossTerms:
                terms = next(outputs, batch)
                logits = logits_of(outputs)
                if logits.shape[:-1] != terms.values.shape or logits.shape[-1] < 2:
                    raise SettingError(
                        f"label_smoothing: the loss has the shape {tuple(terms.values.shape)} and the logits "
                        f"{tuple(logits.shape)}. It needs one loss for each row of scores of at least two classes."
                    )
                if terms.weights is not None:
                    # a NaN in a position of weight 0 would come back through log_softmax's backward
                    logits = torch.where((terms.weights > 0).unsqueeze(-1), logits, 0.0)
                values = (1 - self.epsilon) * terms.values + self.epsilon * uniform_cross_entropy(logits)
                return replace(terms, values=values)

            return smoothed

        return Seams(loss=loss)
