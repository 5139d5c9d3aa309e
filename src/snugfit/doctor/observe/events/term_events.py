"""The acts of a script between what a model gives and what is differentiated: terms of losses, masks, likenesses."""

from __future__ import annotations

from dataclasses import dataclass

from snugfit.doctor.observe.events.script_events import Event


@dataclass(frozen=True)
class PulledTogether(Event):
    """A loss is made of two cosines alone: each target has a graph, and is what the other prediction is computed from."""


@dataclass(frozen=True)
class ConstantTerm(Event):
    """A number without a graph was added to one that is differentiated.

    Args:
        value: of the number.
    """

    value: float


@dataclass(frozen=True)
class LinearModel(Event):
    """A model gave linear functions of its inputs alone, by way of a layer that was made at this line and one before it.

    Args:
        sizes: of what the first layer gets, of what is between both, and of what the second gives.
        computed_at: where the model was called.
    """

    sizes: list[int]
    computed_at: str


@dataclass(frozen=True)
class TermLeftOut(Event):
    """A sum was read of which one term was differentiated, and another one with a graph never.

    Args:
        read_at: where it was read.
    """

    read_at: str


@dataclass(frozen=True)
class SummedLoss(Event):
    """The whole value that is differentiated is a sum over the rows.

    Args:
        rate: by which the mean over the rows would be learned: the optimizer's times the rows, over what momentum leaves.
    """

    rows: int
    rate: float


@dataclass(frozen=True)
class MeanInMean(Event):
    """A mean over rows was added to each of other rows, of which the mean was taken again."""


@dataclass(frozen=True)
class RawOverlap(Event):
    """The overlap of raw scores with a mask was divided by their sum, as that of probabilities is."""

    maker: str


@dataclass(frozen=True)
class OwnRowScored(Event):
    """A loss over classes got the likenesses of all rows to each other, the one of a row to itself among them, which is never the label."""

    rows: int


@dataclass(frozen=True)
class MaskedWeights(Event):
    """Weights of attention were masked behind their softmax: they no longer come to 1.

    Args:
        least: the smallest sum of a place's weights that is not 0.
    """

    least: float


@dataclass(frozen=True)
class PaddingRead(Event):
    """The scores of padded rows depend on their padding.

    Args:
        share: mean size of the gradient at a place of padding over that at a place of text.
        attends: whether the model attends to all places of a row.
        pooled: whether a mean or a sum over the places takes them all, at this line.
    """

    share: float
    padding: int
    attends: bool = False
    pooled: bool = False


@dataclass(frozen=True)
class TransposedTargets(Event):
    """A loss of numbers got targets whose first two axes were exchanged since the loader gave them, and predictions whose were not."""

    shape: list[int]
