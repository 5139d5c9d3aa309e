"""Squeeze-and-excitation: each channel behind a convolution is scaled by what the whole image has in all of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from snugfit.core.technique import Card, Context, Family, Kind, Seams, Stage, Technique
from snugfit.kit.pictures.convolutions import convolutions, no_convolution


class ChannelFactors(nn.Module):
    """Factors of channels, from their means over the image by two layers of which the first is narrow."""

    def __init__(self, channels: int, hidden: int, like: Tensor) -> None:
        super().__init__()
        self.squeeze = nn.Linear(channels, hidden, dtype=like.dtype, device=like.device)
        self.excite = nn.Linear(hidden, channels, dtype=like.dtype, device=like.device)

    def forward(self, features: Tensor) -> Tensor:
        """Scale features (rows, channels, height, width), or those of one image."""
        factors = self.excite(torch.relu(self.squeeze(features.mean(dim=(-2, -1))))).sigmoid()
        scaled: Tensor = features * factors[..., None, None]
        return scaled


@dataclass(frozen=True)
class SqueezeExcite(Technique):
    """Put a squeeze-and-excitation behind convolutions with many channels."""

    reduction: int = 16
    min_channels: int = 128
    convs: tuple[str, ...] = ()

    card: ClassVar[Card] = Card(
        name="squeeze_excite",
        summary="Scales each channel behind a convolution by what all of them have in the whole image.",
        aliases=("squeeze-and-excitation",),
        family=Family.LEARNING,
        source="Hu et al. 2017, arXiv:1709.01507; behind convolutions as composer's SqueezeExcite",
        seams=(),
        stages=(Stage.LAYER,),
        kind=Kind.IMAGES,
        conflicts=dict.fromkeys(
            ("lora", "ia3"),
            "the new layers would not train with the adapters, and one behind a convolution could not be merged. Remove one.",
        ),
        refuses={
            Stage.QUANTISE: "the new layers would be frozen in few bits before they have learned. Remove one."
        },
        cost="a pass over the features of each such convolution, and 2 * channels**2 / reduction weights",
        use_when="convolutional nets from scratch that have none yet; not for pretrained weights, which it disturbs",
    )

    def __post_init__(self) -> None:
        self.require("reduction", self.reduction >= 1, "at least 1")
        self.require("min_channels", self.min_channels >= 1, "at least 1")

    @classmethod
    def example(cls) -> Self:
        return cls(reduction=2, min_channels=2)

    def prepare(self, model: nn.Module) -> nn.Module:
        convs = convolutions(model, self.convs, "squeeze_excite.convs", self.min_channels)
        if not convs:
            kind = f"with {self.min_channels} channels (min_channels) on both sides"
            raise no_convolution("squeeze_excite.convs", model, kind)
        for conv in convs.values():
            hidden = max(1, conv.out_channels // self.reduction)
            conv.squeeze_excite = ChannelFactors(conv.out_channels, hidden, conv.weight)
            conv.register_forward_hook(_excite)
        return model

    def seams(self, context: Context) -> Seams:
        return Seams()


def _excite(conv: nn.Module, _inputs: Any, features: Tensor) -> Tensor:
    scaled: Tensor = conv.squeeze_excite(features)  # type: ignore[operator]
    return scaled
