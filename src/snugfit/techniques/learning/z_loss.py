"""The z-loss: keeps the logits' normaliser near 1, so that they neither drift nor overflow."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from snugfit.core.batch import Batch
from snugfit.core.losses import LossTerms, logits_of
from snugfit.core.technique import BatchLoss, Card, Context, Family, Seams, Stage, Technique
from snugfit.errors import SettingError


def squared_log_normaliser(logits: Tensor) -> Tensor:
    """`log(Z)^2` with Z the sum of exp over the last dimension of logits (..., classes); in float32 at least.

    >>> squared_log_normaliser(torch.zeros(1, 4))
    tensor([1.9218])
    """
    wide = torch.promote_types(logits.dtype, torch.float32)
    return logits.to(wide).logsumexp(dim=-1).square()


@dataclass(frozen=True)
class ZLoss(Technique):
    """Add `coefficient * log(Z)^2` to each term of the loss, Z being the sum of the exponentials of its logits."""

    coefficient: float = 1e-4

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
        self.require("coefficient", 0 < self.coefficient < float("inf"), "positive and finite")

    @classmethod
    def example(cls) -> Self:
        return cls(coefficient=0.2)

    def seams(self, context: Context) -> Seams:
        def loss(next: BatchLoss) -> BatchLoss:
            def with_normaliser(outputs: Any, batch: Batch) -> LossTerms:
                terms = next(outputs, batch)
                logits = logits_of(outputs)
                if logits.shape[:-1] != terms.values.shape or logits.shape[-1] < 2:
                    raise SettingError(
                        f"z_loss: the loss has the shape {tuple(terms.values.shape)} and the logits "
                        f"{tuple(logits.shape)}. It needs one loss for each row of scores of at least two classes."
                    )
                if terms.weights is not None:
                    # a NaN in a position of weight 0 would come back through logsumexp's backward
                    logits = torch.where((terms.weights > 0).unsqueeze(-1), logits, 0.0)
                return replace(terms, values=terms.values + self.coefficient * squared_log_normaliser(logits))

            return with_normaliser

        return Seams(loss=loss)
