"""The z-loss: keeps the logits' normaliser near 1, so that they neither drift nor overflow."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from snugfit.core.batch import Batch
from snugfit.core.loss_terms import LossTerms
from snugfit.core.technique import BatchLoss, Card, Context, Family, Seams, Stage, Technique
from snugfit.kit.losses.class_axis import class_scores, find_class_dim, refuse_embeddings


def squared_log_normaliser(logits: Tensor, dim: int = -1) -> Tensor:
    """`log(Z)^2` with Z the sum of exp over the classes of dimension `dim`; in float32 at least.

    Its shape is that of the logits without `dim`.

    >>> squared_log_normaliser(torch.zeros(1, 4))
    tensor([1.9218])
    """
    wide = torch.promote_types(logits.dtype, torch.float32)
    return logits.to(wide).logsumexp(dim=dim).square()


@dataclass(frozen=True)
class ZLoss(Technique):
    """Add `coefficient * log(Z)^2` to each term of the loss, Z being the sum of the exponentials of its logits."""

    coefficient: float = 1e-4
    dim: int | None = None

    card: ClassVar[Card] = Card(
        name="z_loss",
        summary="Keeps the normaliser of the logits near 1, which keeps long runs in 16 bit stable.",
        family=Family.LEARNING,
        source="Chowdhery et al. 2022 (PaLM), arXiv:2204.02311, section 5; de Brébisson & Vincent 2016, arXiv:1604.08859",
        seams=("loss",),
        stages=(Stage.TERM,),
        cost="one logsumexp over the logits",
        use_when="language models trained long or in 16 bit, whose logits drift; 1e-4 is usual",
    )

    def __post_init__(self) -> None:
        self.require_positive("coefficient")
        self.require("dim", self.dim in (None, 1, -1), "1 or -1")

    @classmethod
    def example(cls) -> Self:
        return cls(coefficient=0.2)

    def seams(self, context: Context) -> Seams:
        refuse_embeddings("z_loss", context.loss)

        def loss(next: BatchLoss) -> BatchLoss:
            def with_normaliser(outputs: Any, batch: Batch) -> LossTerms:
                terms = next(outputs, batch)
                logits = class_scores("z_loss", outputs, context.loss)
                dim = find_class_dim("z_loss", logits, terms.values, loss=context.loss, dim=self.dim)
                if terms.weights is not None:
                    # a NaN in a position of weight 0 would come back through logsumexp's backward
                    logits = torch.where((terms.weights > 0).unsqueeze(dim), logits, 0.0)
                added = self.coefficient * squared_log_normaliser(logits, dim)
                return replace(terms, values=terms.values + added)

            return with_normaliser

        return Seams(loss=loss)
