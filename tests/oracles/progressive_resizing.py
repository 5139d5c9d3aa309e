"""Progressive resizing (Howard 2018; the settings of composer): small images first, whole ones at the end.

The images are made smaller by hand: each new pixel is a mean of the old ones under a triangle that is as wide as the
pixels have become, which is what bilinear interpolation with antialiasing means.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.oracles.loop import Named, Trained, Window, gradient_of, plain_sgd


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    updates = iter(range(total))

    def direction(model: nn.Module, window: Window) -> tuple[Named, float]:
        scale = scale_after(next(updates) / total, settings)
        images = window["pixels"]
        sides = [smaller(side, scale, settings["size_increment"]) for side in images.shape[2:]]
        rows, columns = (
            triangles(side, new).to(images.dtype) for side, new in zip(images.shape[2:], sides, strict=True)
        )
        return gradient_of(model, {**window, "pixels": rows @ images @ columns.T})

    return plain_sgd(model, windows, direction)


def scale_after(part: float, settings: dict[str, Any]) -> float:
    begin, end = settings["delay_fraction"], 1 - settings["finetune_fraction"]
    if part <= begin:
        return float(settings["initial"])
    if part >= end:
        return 1.0
    return float(settings["initial"] + (1 - settings["initial"]) * (part - begin) / (end - begin))


def smaller(side: int, scale: float, increment: int) -> int:
    length = increment
    while length + increment <= side * scale + 1e-9:
        length += increment
    return length


def triangles(side: int, new: int) -> Tensor:
    """The matrix that makes `new` pixels out of `side`."""
    matrix = torch.eye(side, dtype=torch.float64)
    if new == side:
        return matrix
    width = side / new
    matrix = torch.zeros(new, side, dtype=torch.float64)
    for place in range(new):
        centre = (place + 0.5) * width
        for old in range(side):
            matrix[place, old] = max(0.0, 1 - abs(old + 0.5 - centre) / width)
        matrix[place] /= matrix[place].sum()
    return matrix
