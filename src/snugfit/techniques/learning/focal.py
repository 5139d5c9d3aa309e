"""Focal loss: what is classified well already counts little."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from snugfit.core.batch import Batch, labels_of
from snugfit.core.loss_terms import Loss, LossTerms
from snugfit.core.losses import causal_lm, class_dim, logits_of, mse
from snugfit.core.technique import BatchLoss, Card, Context, Family, Seams, Stage, Technique
from snugfit.errors import SettingError


def focused(losses: Tensor, gamma: float) -> Tensor:
    """`(1 - p) ** gamma * loss` of cross-entropies, where `p = exp(-loss)` is the label's probability; any shape.

    >>> focused(-torch.tensor([0.9, 0.5]).log(), gamma=2.0)
    tensor([0.0011, 0.1733])
    """
    # never 0: the derivative of a power below 1 is infinite there
    missed = (-torch.expm1(-losses)).clamp(min=torch.finfo(losses.dtype).tiny)
    return missed**gamma * losses


def label_factors(labels: Tensor, alpha: Tensor) -> Tensor:
    """Return each label's factor, of the labels' shape: `alpha[label]`, or 0 for labels below 0, which are ignored.

    Floating labels are of binary scores: `alpha[0]` for 0, `alpha[1]` for 1.

    >>> label_factors(torch.tensor([1, 0, -100]), torch.tensor([0.25, 0.75]))
    tensor([0.7500, 0.2500, 0.0000])
    """
    if labels.is_floating_point():
        return alpha[0] + (alpha[1] - alpha[0]) * labels
    return torch.where(labels >= 0, alpha[labels.clamp(min=0)], 0.0)


@dataclass(frozen=True)
class Focal(Technique):
    """Scale each cross-entropy by how far the label's probability is from 1, and by the label's own factor."""

    gamma: float = 2.0
    alpha: tuple[float, ...] | None = None

    card: ClassVar[Card] = Card(
        name="focal",
        summary="Scales each loss down by how well it is classified, so that easy examples do not drown hard ones.",
        aliases=("focal loss",),
        family=Family.LEARNING,
        source="Lin et al. 2017, arXiv:1708.02002",
        seams=("loss",),
        stages=(Stage.FOCUS,),
        cost="a few operations on the losses",
        use_when="classes are very unequal, and most examples are easy; gamma 2 is the paper's",
    )

    def __post_init__(self) -> None:
        self.require_not_negative("gamma")
        self.require(
            "alpha",
            self.alpha is None
            or (len(self.alpha) >= 2 and all(0 <= factor < float("inf") for factor in self.alpha)),
            "one factor of 0 or more for each class",
        )

    @classmethod
    def example(cls) -> Self:
        return cls(gamma=1.5)

    def seams(self, context: Context) -> Seams:
        self._check_loss(context.loss)
        alpha = None if self.alpha is None else torch.tensor(self.alpha, device=context.device)

        def loss(next: BatchLoss) -> BatchLoss:
            def focal(outputs: Any, batch: Batch) -> LossTerms:
                if class_dim(context.loss) is not None and labels_of(batch.data).is_floating_point():
                    raise SettingError(
                        "focal",
                        "the labels are soft, and it weighs by the probability of the one label",
                        "Give integer labels, or remove focal.",
                    )
                terms = next(outputs, batch)
                values = terms.values
                if (
                    terms.weights is not None
                ):  # a NaN of weight 0 would come back through the power's backward
                    values = torch.where(terms.weights > 0, values, 0.0)
                values = focused(values, self.gamma)
                if alpha is not None:
                    values = values * _factors(logits_of(outputs), labels_of(batch.data), terms, alpha)
                return replace(terms, values=values)

            return focal

        return Seams(loss=loss)

    def _check_loss(self, loss: Loss | None) -> None:
        if loss is mse:
            raise SettingError("focal", "the loss is mse, and it needs a cross-entropy", "Remove it.")
        if loss is causal_lm and self.alpha is not None:
            raise SettingError(
                "focal.alpha",
                "causal_lm scores each place on the next label, so that factors would go to the wrong place",
                "Remove alpha.",
            )


def _factors(logits: Tensor, labels: Tensor, terms: LossTerms, alpha: Tensor) -> Tensor:
    binary = labels.is_floating_point()
    classes = {2} if binary else {logits.shape[1], logits.shape[-1]}
    if labels.shape != terms.values.shape or alpha.shape[0] not in classes:
        raise SettingError(
            "focal.alpha",
            f"has {alpha.shape[0]} factors for logits of shape {tuple(logits.shape)}, labels of shape "
            f"{tuple(labels.shape)} and a loss of shape {tuple(terms.values.shape)}",
            "Give one for each class of the labels, which are one for each loss, or two for binary scores.",
        )
    if terms.weights is not None and not binary:
        labels = labels.masked_fill(terms.weights <= 0, 0)  # ignored, by whatever number
    return label_factors(labels, alpha).to(terms.values.dtype)
