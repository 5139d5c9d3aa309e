"""ColOut: rows and columns of pixels are left out, others in each image."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from snugfit.core.batch import Batch
from snugfit.core.technique import Card, Context, Family, Kind, Moment, Seams, Stage, Technique
from snugfit.kit.pictures.images import map_images, refuse_labels_of_pixels
from snugfit.system.device_copies import to_device


def remaining_lines(draws: Tensor, part: float) -> Tensor:
    """Return the lines of each image that stay, in their order: those of the smallest draws.

    Args:
        draws: one for each line, shape (rows, lines).
        part: of the lines that are left out; the number is rounded down, and one line at least stays.

    >>> remaining_lines(torch.tensor([[0.3, 0.9, 0.1, 0.5]]), part=0.5)
    tensor([[0, 2]])
    """
    lines = draws.shape[1]
    count = max(1, lines - math.floor(lines * part))
    return draws.argsort(dim=1, stable=True)[:, :count].sort(dim=1).values


def thinned(images: Tensor, down: Tensor, across: Tensor) -> Tensor:
    """Images (rows, channels, height, width) of these rows and columns of pixels, shapes (rows, new height) and (rows, new width).

    >>> image = torch.arange(9).view(1, 1, 3, 3)
    >>> thinned(image, torch.tensor([[0, 2]]), torch.tensor([[1, 2]]))[0, 0]
    tensor([[1, 2],
            [7, 8]])
    """
    rows, channels, _, width = images.shape
    height = down.shape[1]
    shorter = images.gather(2, down.view(rows, 1, height, 1).expand(rows, channels, height, width))
    return shorter.gather(3, across.view(rows, 1, 1, -1).expand(rows, channels, height, across.shape[1]))


@dataclass(frozen=True)
class ColOut(Technique):
    """Train on images without some of their rows and columns of pixels, which are drawn for each."""

    rows: float = 0.15
    columns: float = 0.15

    card: ClassVar[Card] = Card(
        name="colout",
        summary="Leaves rows and columns of pixels out of each image, so that updates take less time.",
        family=Family.LEARNING,
        source="MosaicML 2021, composer's ColOut; after perforated convolutions, Figurnov et al. 2015, arXiv:1504.08362",
        seams=("batch",),
        stages=(Stage.THIN,),
        kind=Kind.IMAGES,
        cost="a copy of the images; saves up to rows + columns of the time",
        use_when="models that take images of any size, and images that are not tiny",
    )

    def __post_init__(self) -> None:
        self.require("rows", 0 <= self.rows < 1, "in [0, 1)")
        self.require("columns", 0 <= self.columns < 1, "in [0, 1)")
        self.require("rows", self.rows + self.columns > 0, "above 0 where columns is 0")

    @classmethod
    def example(cls) -> Self:
        return cls(rows=0.25, columns=0.25)

    def seams(self, context: Context) -> Seams:
        def batch(window: Batch, moment: Moment) -> Batch:
            def thin(images: Tensor) -> Tensor:
                source = moment.generator()
                lines = []
                for part, size in zip((self.rows, self.columns), images.shape[2:], strict=True):
                    draws = window.own(torch.rand(window.total, size, generator=source))
                    lines.append(to_device(remaining_lines(draws, part), images.device))
                return thinned(images, *lines)

            refuse_labels_of_pixels(window.data, self.card.name)
            return replace(window, data=map_images(thin, window.data, self.card.name))

        return Seams(batch=batch)
