"""CutOut: squares of each image are covered."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from snugfit.core.batch import Batch
from snugfit.core.technique import Card, Context, Family, Kind, Moment, Seams, Stage, Technique
from snugfit.kit.pictures.images import map_images
from snugfit.system.device_copies import to_device


def covered(images: Tensor, centres: Tensor, length: float) -> Tensor:
    """Images (rows, channels, height, width) with squares of 0, cut off at the edges of the image.

    Args:
        centres: of the squares of each row, as parts of height and width in [0, 1), shape (rows, squares, 2).
        length: of a square's side, as part of the shorter side of the image; rounded down to pixels, but one at least.

    >>> covered(torch.ones(1, 1, 3, 4), torch.tensor([[[0.5, 0.0]]]), length=0.67)[0, 0]
    tensor([[0., 1., 1., 1.],
            [0., 1., 1., 1.],
            [1., 1., 1., 1.]])
    """
    height, width = images.shape[2:]
    side = max(1, math.floor(min(height, width) * length))
    inside = []
    for dim, size in enumerate((height, width)):
        first = (centres[..., dim] * size).long() - side // 2
        places = torch.arange(size, device=images.device)
        inside.append((places >= first.unsqueeze(-1)) & (places < first.unsqueeze(-1) + side))
    hidden = (inside[0].unsqueeze(-1) & inside[1].unsqueeze(-2)).any(dim=1)
    return images.masked_fill(hidden.unsqueeze(1), 0.0)


@dataclass(frozen=True)
class CutOut(Technique):
    """Cover squares of each image with 0, the mean of normalised pixels, each at a place of its own."""

    length: float = 0.5
    holes: int = 1

    card: ClassVar[Card] = Card(
        name="cutout",
        summary="Covers squares of each image, so that no single part of it is relied on.",
        family=Family.LEARNING,
        source="DeVries & Taylor 2017, arXiv:1708.04552",
        seams=("batch",),
        stages=(Stage.COVER,),
        kind=Kind.IMAGES,
        cost="a copy of the images",
        use_when="small images of centred objects, and the model overfits; longer runs",
    )

    def __post_init__(self) -> None:
        self.require("length", 0 < self.length <= 1, "in (0, 1]")
        self.require("holes", self.holes >= 1, "at least 1")

    @classmethod
    def example(cls) -> Self:
        return cls(holes=2)

    def seams(self, context: Context) -> Seams:
        def batch(window: Batch, moment: Moment) -> Batch:
            drawn = torch.rand(window.total, self.holes, 2, generator=moment.generator())
            own = window.own(drawn)

            def cover(images: Tensor) -> Tensor:
                return covered(images, to_device(own, images.device), self.length)

            return replace(window, data=map_images(cover, window.data, self.card.name))

        return Seams(batch=batch)
