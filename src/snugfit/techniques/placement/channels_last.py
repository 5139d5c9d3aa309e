"""Convolution weights with their channels last in memory."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from snugfit.core.technique import Card, Context, Family, Kind, Seams, Technique
from snugfit.errors import SnugfitWarning

FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}
"""Memory formats by the number of dimensions of a convolution's weight."""


def channels_last_(model: nn.Module) -> int:
    """Lay out the weights of convolutions with their channels last, in place; convolutions then give such outputs.

    Returns:
        How many weights were laid out.

    >>> channels_last_(nn.Sequential(nn.Conv2d(3, 8, 3), nn.Flatten(), nn.Linear(8, 2)))
    1
    """
    weights = [parameter for parameter in model.parameters() if parameter.ndim in FORMATS]
    for weight in weights:
        weight.data = weight.data.contiguous(memory_format=FORMATS[weight.ndim])
    return len(weights)


@dataclass(frozen=True)
class ChannelsLast(Technique):
    """Keep the weights and outputs of convolutions with their channels last in memory, as fast kernels want them."""

    card: ClassVar[Card] = Card(
        name="channels_last",
        summary="Lays convolutions out with their channels last in memory, as tensor cores and oneDNN want them.",
        aliases=("NHWC", "memory_format"),
        family=Family.PLACEMENT,
        source="torch.channels_last; composer's ChannelsLast (MosaicML)",
        seams=(),
        kind=Kind.IMAGES,
        cost="nothing; measure it, as small convolutions can be slower",
        use_when="convolutional nets, with bf16 on a GPU above all",
    )

    def prepare(self, model: nn.Module) -> nn.Module:
        if channels_last_(model) == 0:
            warnings.warn(
                "channels_last: does nothing, as the model has no convolution with two or three dimensions. Remove it.",
                SnugfitWarning,
                stacklevel=2,
            )
        return model

    def seams(self, context: Context) -> Seams:
        return Seams()
