"""CutMix: a box of each image comes from another one, and the loss is shared by area."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from snugfit.core.batch import Batch, labels_of
from snugfit.core.technique import Card, Context, Family, Kind, Moment, Seams, Stage, Technique
from snugfit.errors import SettingError
from snugfit.kit.mixing import (
    PAIR,
    between_labels,
    host_generator,
    map_inputs,
    of_pairs,
    on_device_of,
    partners,
    with_shares,
)


def draw_boxes(rows: int, size: Sequence[int], alpha: float, source: np.random.Generator) -> Tensor:
    """Return a box for each pair of rows, repeated for both: top, bottom, left, right; int64, shape (rows, 4).

    Its sides are those of the image times `sqrt(1 - lambda)` with lambda from Beta(alpha, alpha); its centre is
    anywhere, and what lies outside the image is cut off. The last row of an odd number has an empty box. Drawn in this
    order: all lambdas, all heights of centres, all places across.
    """
    shares = source.beta(alpha, alpha, rows // PAIR)
    edges = []
    for length in size:
        half = (length * np.sqrt(1 - shares)).astype(np.int64) // 2
        centre = source.integers(0, length, rows // PAIR)
        edges += [np.clip(centre - half, 0, length), np.clip(centre + half, 0, length)]
    return of_pairs(torch.tensor(np.stack(edges, axis=1)), rows, alone=0)


def pasted(images: Tensor, boxes: Tensor) -> Tensor:
    """Images (rows, channels, height, width) with each row's box taken from its partner, of any dtype.

    >>> images = torch.tensor([1, 2]).view(2, 1, 1, 1).expand(2, 1, 2, 3)
    >>> pasted(images, torch.tensor([[0, 1, 1, 3]] * 2))[:, 0]
    tensor([[[1, 2, 2],
             [1, 1, 1]],
    <BLANKLINE>
            [[2, 1, 1],
             [2, 2, 2]]])
    """
    top, bottom, left, right = boxes.view(-1, 4, 1, 1, 1).unbind(1)
    down = torch.arange(images.shape[2], device=images.device).view(-1, 1)
    across = torch.arange(images.shape[3], device=images.device)
    inside = (down >= top) & (down < bottom) & (across >= left) & (across < right)
    return torch.where(inside, partners(images), images)


def area_outside(boxes: Tensor, size: Sequence[int]) -> Tensor:
    """Return the part of each image that is its own: float32, shape (rows,).

    >>> area_outside(torch.tensor([[0, 1, 1, 3]]), (2, 4))
    tensor([0.7500])
    """
    top, bottom, left, right = boxes.unbind(1)
    return 1 - ((bottom - top) * (right - left)).float() / (size[0] * size[1])


@dataclass(frozen=True)
class CutMix(Technique):
    """Swap a box between two neighbouring images of the window, and share the loss by area."""

    alpha: float = 1.0

    card: ClassVar[Card] = Card(
        name="cutmix",
        summary="Pastes a box of another image into each one, with the loss shared by area.",
        family=Family.LEARNING,
        source="Yun et al. 2019, arXiv:1905.04899",
        seams=("batch", "loss"),
        together=PAIR,
        stages=(Stage.MIX, Stage.SHARE),
        kind=Kind.IMAGES,
        cost="a copy of the images; the loss twice",
        use_when="image classification that overfits, in longer runs; 1.0 is the paper's alpha",
    )

    def __post_init__(self) -> None:
        self.require_positive("alpha")

    @classmethod
    def example(cls) -> Self:
        return cls(alpha=0.5)

    def seams(self, context: Context) -> Seams:
        def batch(window: Batch, moment: Moment) -> Batch:
            size = _size(window.data)
            drawn = draw_boxes(window.total, size, self.alpha, host_generator(moment))
            boxes = on_device_of(window, window.own(drawn))
            cut = replace(window, data=map_inputs(lambda images: pasted(images, boxes), window.data))
            return with_shares(cut, area_outside(boxes, size))

        return Seams(batch=batch, loss=between_labels)


def _size(data: Any) -> tuple[int, int]:
    shapes: list[tuple[int, ...]] = []
    map_inputs(lambda tensor: shapes.append(tuple(tensor.shape)), data)
    if any(len(shape) != 4 for shape in shapes) or len({shape[2:] for shape in shapes}) != 1:
        raise SettingError(
            "cutmix",
            "needs images of one size, (rows, channels, height, width), found inputs of shape "
            f"{', '.join(map(str, shapes)) or 'none'}",
            "Use 'mixup' for other numbers, 'hidden_mixup' for text.",
        )
    if labels_of(data).ndim > 2:
        raise SettingError(
            "cutmix",
            "the labels have an entry for each pixel, and one share is for a whole image",
            "Remove it.",
        )
    return shapes[0][2], shapes[0][3]
