"""Mixup: train on lines between two examples and between their labels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from torch import Tensor

from snugfit.core.batch import Batch
from snugfit.core.technique import Card, Context, Family, Kind, Moment, Seams, Stage, Technique
from snugfit.errors import SettingError
from snugfit.kit.mixing import PAIR, between_labels, map_inputs, mix, shares_of, with_shares


def mixed_inputs(data: Any, share: Tensor) -> Any:
    """Return the batch with its inputs mixed between neighbours: `share` of the row, `1 - share` of its partner.

    Args:
        data: a mapping with `labels`, or a tuple that ends with them; the labels stay as they are.
        share: shape (rows,), the same for both rows of a pair, 1 for the last row of an odd number.
    Raises:
        SettingError: an input is not floating.

    >>> import torch
    >>> inputs, labels = mixed_inputs((torch.tensor([0.0, 8.0]), torch.tensor([0, 1])), torch.tensor([0.75, 0.75]))
    >>> inputs, labels
    (tensor([2., 6.]), tensor([0, 1]))
    """

    def mixed(tensor: Tensor) -> Tensor:
        if tensor.ndim == 0:  # not of the rows
            return tensor
        if not tensor.is_floating_point():
            raise SettingError(
                "mixup",
                f"an input of {tensor.dtype}, such as token ids or a mask, cannot be mixed",
                "Use 'hidden_mixup', which mixes what the model makes of it.",
            )
        return mix(tensor, share)

    return map_inputs(mixed, data)


@dataclass(frozen=True)
class Mixup(Technique):
    """Mix the inputs of two neighbours of the window, and share the loss between their labels."""

    alpha: float = 0.2

    card: ClassVar[Card] = Card(
        name="mixup",
        summary="Trains on mixtures of two examples, with the loss shared between their labels.",
        family=Family.LEARNING,
        source="Zhang et al. 2017, arXiv:1710.09412",
        seams=("batch", "loss"),
        together=PAIR,
        stages=(Stage.MIX, Stage.SHARE),
        kind=Kind.NUMBERS,
        cost="a copy of the inputs; the loss twice",
        use_when="images or numbers, and the model overfits; alpha 0.1 to 0.4, more for long runs",
    )

    def __post_init__(self) -> None:
        self.require_positive("alpha")

    @classmethod
    def example(cls) -> Self:
        return cls(alpha=1.0)

    def seams(self, context: Context) -> Seams:
        def batch(window: Batch, moment: Moment) -> Batch:
            share = shares_of(window, self.alpha, moment)
            return with_shares(replace(window, data=mixed_inputs(window.data, share)), share)

        return Seams(batch=batch, loss=between_labels)
