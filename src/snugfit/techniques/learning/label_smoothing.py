"""Label smoothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from snugfit.core.batch import Batch
from snugfit.core.loss_terms import Loss, LossTerms
from snugfit.core.losses import TorchLoss
from snugfit.core.technique import BatchLoss, Card, Context, Family, Seams, Stage, Technique
from snugfit.errors import SettingError
from snugfit.kit.losses.class_axis import class_scores, find_class_dim, refuse_embeddings


def uniform_cross_entropy(logits: Tensor, dim: int = -1) -> Tensor:
    """Cross-entropy of logits with the uniform distribution over the classes of dimension `dim`, in float32 at least.

    Its shape is that of the logits without `dim`.

    >>> uniform_cross_entropy(torch.zeros(1, 4))
    tensor([1.3863])
    """
    wide = torch.promote_types(logits.dtype, torch.float32)
    return -F.log_softmax(logits, dim=dim, dtype=wide).mean(dim=dim)


@dataclass(frozen=True)
class LabelSmoothing(Technique):
    """Replace labels, hard or soft, by (1 - epsilon) of the label and epsilon of the uniform distribution."""

    epsilon: float = 0.1
    dim: int | None = None

    card: ClassVar[Card] = Card(
        name="label_smoothing",
        summary="Softens the labels, so that the model does not grow over-confident.",
        aliases=("label_smoothing_factor", "LabelSmoother"),
        family=Family.LEARNING,
        source="Szegedy et al. 2016, arXiv:1512.00567",
        seams=("loss",),
        stages=(Stage.SMOOTH,),
        cost="one log-softmax over the logits",
        use_when="classification, and the probabilities should be calibrated; 0.1 is usual",
    )

    def __post_init__(self) -> None:
        self.require("epsilon", 0 < self.epsilon < 1, "in (0, 1)")
        self.require("dim", self.dim in (None, 1, -1), "1 or -1")

    @classmethod
    def example(cls) -> Self:
        return cls(epsilon=0.3)

    def seams(self, context: Context) -> Seams:
        refuse_embeddings("label_smoothing", context.loss)
        _refuse_smoothed_already(context.loss)

        def loss(next: BatchLoss) -> BatchLoss:
            def smoothed(outputs: Any, batch: Batch) -> LossTerms:
                terms = next(outputs, batch)
                logits = class_scores("label_smoothing", outputs, context.loss)
                dim = find_class_dim("label_smoothing", logits, terms.values, loss=context.loss, dim=self.dim)
                if terms.weights is not None:
                    # a NaN in a position of weight 0 would come back through log_softmax's backward
                    logits = torch.where((terms.weights > 0).unsqueeze(dim), logits, 0.0)
                values = (1 - self.epsilon) * terms.values + self.epsilon * uniform_cross_entropy(logits, dim)
                return replace(terms, values=values)

            return smoothed

        return Seams(loss=loss)


def _refuse_smoothed_already(loss: Loss | None) -> None:
    own = loss.module if isinstance(loss, TorchLoss) else None
    if isinstance(own, torch.nn.CrossEntropyLoss) and own.label_smoothing > 0:
        raise SettingError(
            "label_smoothing",
            f"the loss CrossEntropyLoss(label_smoothing={own.label_smoothing:g}) smooths the labels already",
            "Remove one.",
        )
