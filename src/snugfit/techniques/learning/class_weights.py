"""Class weights: labels of some classes count more than those of others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor

from snugfit.core.batch import Batch, labels_of
from snugfit.core.loss_terms import Loss, LossTerms
from snugfit.core.losses import causal_lm, class_dim, logits_of, mse, unwrapped
from snugfit.core.technique import BatchLoss, Card, Context, Family, Seams, Stage, Technique
from snugfit.errors import SettingError, nearest
from snugfit.kit.losses.class_axis import refuse_embeddings

BALANCED: Literal["balanced"] = "balanced"


def balanced_weights(counts: Sequence[int]) -> list[float]:
    """Return `rows / (classes * count)` for each class: all classes then weigh the same, and a row 1 on average. A class without rows has 0.

    >>> balanced_weights([6, 3, 3])
    [0.6666666666666666, 1.3333333333333333, 1.3333333333333333]
    """
    there = sum(count > 0 for count in counts)
    return [sum(counts) / (there * count) if count else 0.0 for count in counts]


@dataclass(frozen=True)
class ClassWeights(Technique):
    """Multiply the weight of each label by that of its class; the loss is the weighted mean over the window."""

    weights: Literal["balanced"] | Mapping[str, float] | tuple[float, ...] = BALANCED

    card: ClassVar[Card] = Card(
        name="class_weights",
        summary="Lets labels of rare classes count more, by how often each class is trained on or as you say.",
        aliases=("class_weight", "cost-sensitive learning", "weighted cross-entropy"),
        family=Family.LEARNING,
        source="scikit-learn's class_weight; King & Zeng 2001, doi:10.1093/oxfordjournals.pan.a004868",
        seams=("loss",),
        stages=(Stage.WEIGH,),
        cost="one look-up for each label",
        use_when="classes are very unequal, and the score counts each class alike, such as macro F1",
    )

    def __post_init__(self) -> None:
        if isinstance(self.weights, Sequence) and not isinstance(self.weights, str):
            object.__setattr__(self, "weights", tuple(self.weights))
        if self.weights != BALANCED:
            given = [*self.weights.values()] if isinstance(self.weights, Mapping) else [*self.weights]
            usable = all(isinstance(each, (int, float)) and 0 <= each < float("inf") for each in given)
            self.require(
                "weights",
                len(given) > 0 and usable and any(given),
                "balanced, or weights of 0 or more, not all 0",
            )

    @classmethod
    def example(cls) -> Self:
        return cls(weights=tuple(1.0 + label for label in range(16)))

    def seams(self, context: Context) -> Seams:
        _check_loss(context.loss)
        weights, axis = self._by_class(context.class_counts, context.device), class_dim(context.loss)

        def loss(next: BatchLoss) -> BatchLoss:
            def weighted(outputs: Any, batch: Batch) -> LossTerms:
                terms = next(outputs, batch)
                if weights is None:
                    return terms
                if axis is not None:
                    _check_number(logits_of(outputs).shape[axis], len(weights))
                return _weighted(terms, labels_of(batch.data), weights)

            return weighted

        return Seams(loss=loss)

    def _by_class(self, counts: Mapping[str, int] | None, device: torch.device) -> Tensor | None:
        """Return the weight of each class; None where classes are assumed, as in a plan.

        Raises:
            SettingError: nobody says what classes there are, or the names or the number of weights are others.
        """
        if isinstance(self.weights, tuple):
            if counts and len(counts) != len(self.weights):
                raise SettingError(
                    "class_weights.weights",
                    f"has {len(self.weights)} weights, and there are {len(counts)} classes: {_listed(counts)}",
                    "Give one for each.",
                )
            return torch.tensor(self.weights, device=device)
        if counts is None:
            raise SettingError(
                "class_weights.weights",
                "needs the classes of a task, and here nobody says how many rows each has",
                "Give a number for each class in the order of the labels: [1.0, 3.0]. Or say it: sf.Step(…, class_counts={'no': 900, 'yes': 100}).",
            )
        if not counts:
            return None
        if isinstance(self.weights, Mapping):
            for name in self.weights:
                if name not in counts:
                    raise SettingError(
                        f"class_weights.weights.{name}",
                        f"there is no class '{name}'; the classes are {_listed(counts)}",
                        nearest(name, counts),
                    )
            return torch.tensor(
                [self.weights.get(name, 1.0) for name in counts], dtype=torch.float32, device=device
            )
        return torch.tensor(balanced_weights([*counts.values()]), device=device)


def _weighted(terms: LossTerms, labels: Tensor, weights: Tensor) -> LossTerms:
    if labels.is_floating_point():
        raise SettingError(
            "class_weights",
            "the labels are soft or binary, and it weighs a label by its one class",
            "Give integer labels, or remove it.",
        )
    shape = terms.values.shape
    if labels.shape != shape[: labels.ndim]:
        raise SettingError(
            "class_weights",
            f"the labels have the shape {tuple(labels.shape)} and the loss {tuple(shape)}",
            "Give one loss for each label, or several, or remove it.",
        )
    own = torch.where(labels >= 0, weights[labels.clamp(0, len(weights) - 1)], 1.0)
    own = own.reshape(*labels.shape, *[1] * (len(shape) - labels.ndim)).expand(shape)
    return replace(terms, weights=own if terms.weights is None else own * terms.weights)


def _check_number(classes: int, weights: int) -> None:
    if weights < classes:
        raise SettingError(
            "class_weights.weights",
            f"has {weights} weights, and the model tells {classes} classes",
            "Give one for each, in the order of the labels.",
        )


def _check_loss(loss: Loss | None) -> None:
    refuse_embeddings("class_weights", loss)
    own = unwrapped(loss)
    if own in (mse, causal_lm):
        what = "has no classes" if own is mse else "scores each place on the next token"
        name = "mse" if own is mse else "causal_lm"
        raise SettingError("class_weights", f"the loss {name} {what}", "Remove it.")


def _listed(counts: Mapping[str, int]) -> str:
    return f"{', '.join([*counts][:10])}{' and more' if len(counts) > 10 else ''}"
