"""Progressive resizing: training begins on small images and ends on whole ones."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from snugfit.core.batch import Batch
from snugfit.core.technique import Card, Context, Family, Kind, Moment, Seams, Stage, Technique
from snugfit.errors import SettingError
from snugfit.kit.pictures.images import map_images, refuse_labels_of_pixels


def scale_at(part: float, initial: float, delay: float, finetune: float) -> float:
    """Return the part of height and width that is trained on after this part of the run.

    `initial` until `delay` of the run, 1 for its last `finetune`, and linear in between.

    >>> [scale_at(part, initial=0.5, delay=0.2, finetune=0.4) for part in (0.0, 0.4, 0.6, 1.0)]
    [0.5, 0.75, 1.0, 1.0]
    """
    risen = min(max((part - delay) / (1 - delay - finetune), 0.0), 1.0)
    return initial + (1 - initial) * risen


def resized(images: Tensor, scale: float, increment: int) -> Tensor:
    """Images (rows, channels, height, width), each side times `scale`, bilinear and antialiased, in float32 at least.

    Args:
        increment: the sides become a multiple of it, rounded down, but at least one; a side never grows.

    >>> resized(torch.zeros(2, 3, 32, 24), scale=0.7, increment=4).shape
    torch.Size([2, 3, 20, 16])
    """
    if scale >= 1:
        return images
    size = [min(side, max(increment, whole_steps(side * scale, increment))) for side in images.shape[2:]]
    wide = images.to(torch.promote_types(images.dtype, torch.float32))  # not there for 16 bit on a CPU
    output = F.interpolate(wide, size=size, mode="bilinear", align_corners=False, antialias=True)
    return output.to(images.dtype)


def whole_steps(length: float, increment: int) -> int:
    """`length` rounded down to a multiple of `increment`; rounding errors of the product do not count."""
    return increment * math.floor((length + 1e-6) / increment)


@dataclass(frozen=True)
class ProgressiveResizing(Technique):
    """Train on images that grow from a part of their size to the whole over the run."""

    initial: float = 0.5
    delay_fraction: float = 0.5
    finetune_fraction: float = 0.2
    size_increment: int = 4

    card: ClassVar[Card] = Card(
        name="progressive_resizing",
        summary="Trains on small images first and on whole ones at the end, which saves much of the time.",
        aliases=("progressive resizing of images",),
        family=Family.LEARNING,
        source="Howard 2018 (fastai, DAWNBench); settings as in composer's ProgressiveResizing",
        seams=("batch",),
        stages=(Stage.CUT,),
        kind=Kind.IMAGES,
        cost="an interpolation a window; saves up to 1 - initial**2 of the time while images are small",
        use_when="models that take images of any size, trained from scratch",
    )

    def __post_init__(self) -> None:
        self.require("initial", 0 < self.initial < 1, "in (0, 1)")
        self.require("delay_fraction", 0 <= self.delay_fraction < 1, "in [0, 1)")
        self.require(
            "finetune_fraction",
            0 <= self.finetune_fraction < 1 - self.delay_fraction,
            f"in [0, {1 - self.delay_fraction:g}), the part of the run behind delay_fraction",
        )
        self.require("size_increment", self.size_increment >= 1, "at least 1")

    @classmethod
    def example(cls) -> Self:
        return cls(delay_fraction=0.2, finetune_fraction=0.2, size_increment=2)

    def seams(self, context: Context) -> Seams:
        total = context.total_updates
        if total is None:
            raise SettingError(
                "progressive_resizing", "needs the length of the run", "Give total_updates to the step."
            )

        def batch(window: Batch, moment: Moment) -> Batch:
            scale = scale_at(
                moment.updates / total, self.initial, self.delay_fraction, self.finetune_fraction
            )

            def smaller(images: Tensor) -> Tensor:
                return resized(images, scale, self.size_increment)

            refuse_labels_of_pixels(window.data, self.card.name)
            return replace(window, data=map_images(smaller, window.data, self.card.name))

        return Seams(batch=batch)
