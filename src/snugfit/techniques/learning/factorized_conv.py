"""Factorised convolutions: a convolution with few channels in between, in place of one with many on both sides."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import nn

from snugfit.core.layers import replace_module
from snugfit.core.technique import Card, Context, Family, Kind, Seams, Stage, Technique
from snugfit.errors import SettingError
from snugfit.kit.pictures.convolutions import convolutions, no_convolution


def factorized(conv: nn.Conv2d, rank: int) -> nn.Sequential:
    """Return two convolutions, `narrow` to `rank` channels and `wide` of single pixels, whose product is the nearest to `conv` of that rank.

    Each has the root of the singular values.

    >>> conv = nn.Conv2d(8, 16, 3, padding=1)
    >>> [tuple(each.weight.shape) for each in factorized(conv, rank=2)]
    [(2, 8, 3, 3), (16, 2, 1, 1)]
    """
    dtype, device = conv.weight.dtype, conv.weight.device
    narrow = nn.Conv2d(
        conv.in_channels,
        rank,
        conv.kernel_size,  # type: ignore[arg-type]
        conv.stride,  # type: ignore[arg-type]
        conv.padding,  # type: ignore[arg-type]
        conv.dilation,  # type: ignore[arg-type]
        bias=False,
        padding_mode=conv.padding_mode,
        dtype=dtype,
        device=device,
    )
    wide = nn.Conv2d(rank, conv.out_channels, 1, bias=conv.bias is not None, dtype=dtype, device=device)
    with torch.no_grad():
        matrix = conv.weight.flatten(1).to(torch.promote_types(conv.weight.dtype, torch.float32))
        outputs, sizes, inputs = torch.linalg.svd(matrix, full_matrices=False)
        roots = sizes[:rank].sqrt()
        narrow.weight.copy_((roots.unsqueeze(1) * inputs[:rank]).view_as(narrow.weight))
        wide.weight.copy_((outputs[:, :rank] * roots).view_as(wide.weight))
        if conv.bias is not None and wide.bias is not None:
            wide.bias.copy_(conv.bias)
    return nn.Sequential(OrderedDict(narrow=narrow, wide=wide))


@dataclass(frozen=True)
class FactorizedConv(Technique):
    """Replace convolutions with many channels by two, with a part of the channels in between."""

    part: float = 0.25
    min_channels: int = 256
    convs: tuple[str, ...] = ()

    card: ClassVar[Card] = Card(
        name="factorized_conv",
        summary="Replaces large convolutions by two with few channels in between: fewer weights, and less time.",
        aliases=("factorised convolutions", "factorize"),
        family=Family.LEARNING,
        source="Zhang et al. 2014, arXiv:1411.4229; Khodak et al. 2021, arXiv:2105.01029; settings as composer's Factorize",
        seams=(),
        stages=(Stage.RESHAPE,),
        kind=Kind.IMAGES,
        conflicts=dict.fromkeys(
            ("lora", "ia3"),
            "they freeze the factors, and what was lost in them is never learned again. Remove one.",
        ),
        cost="some quality; saves most of the weights and the time of these convolutions",
        use_when="wide convolutional nets that are too large or too slow, from scratch or pretrained",
    )

    def __post_init__(self) -> None:
        self.require("part", 0 < self.part < 1, "in (0, 1)")
        self.require("min_channels", self.min_channels >= 1, "at least 1")

    @classmethod
    def example(cls) -> Self:
        return cls(part=0.5, min_channels=2)

    def prepare(self, model: nn.Module) -> nn.Module:
        large = convolutions(model, self.convs, "factorized_conv.convs", self.min_channels)
        if not large:
            kind = f"with {self.min_channels} channels (min_channels) on both sides"
            raise no_convolution("factorized_conv.convs", model, kind)
        ranks = {conv: self._rank(conv) for conv in large.values()}
        smaller = {conv: factorized(conv, rank) for conv, rank in ranks.items() if _saves(conv, rank)}
        if not smaller:
            raise SettingError(
                "factorized_conv.part",
                f"{self.part:g} of the channels saves no weight of any of these convolutions, {', '.join(large)}",
                "Lower it. Convolutions in groups are never factorised.",
            )
        for name, module in list(model.named_modules(remove_duplicate=False)):
            if module in smaller:
                replace_module(model, name, smaller[module])
        return model

    def seams(self, context: Context) -> Seams:
        return Seams()

    def _rank(self, conv: nn.Conv2d) -> int:
        return max(1, round(self.part * min(conv.in_channels, conv.out_channels)))


def _saves(conv: nn.Conv2d, rank: int) -> bool:
    filters = conv.weight[0].numel()
    return conv.groups == 1 and rank * (filters + conv.out_channels) < filters * conv.out_channels
