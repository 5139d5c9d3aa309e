"""CutOut: DeVries & Taylor 2017, arXiv:1708.04552, section 3.3: a square of zeros, whose centre is any pixel, so that part of it may lie outside."""

from __future__ import annotations

from itertools import count
from typing import Any

from torch import Tensor, nn

from tests.oracles.draws import uniform
from tests.oracles.loop import Named, Trained, Window, gradient_of, plain_sgd


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    numbers = count()

    def direction(model: nn.Module, window: Window) -> tuple[Named, float]:
        images = window["pixels"].clone()
        centres = uniform("cutout", next(numbers), len(images), settings["holes"], 2)
        for image, of_image in zip(images, centres.tolist(), strict=True):
            for down, across in of_image:
                blacken(image, down, across, settings["length"])
        return gradient_of(model, {**window, "pixels": images})

    return plain_sgd(model, windows, direction)


def blacken(image: Tensor, down: float, across: float, length: float) -> None:
    _, height, width = image.shape
    side = int(min(height, width) * length)
    top, left = int(down * height) - side // 2, int(across * width) - side // 2
    for y in range(max(top, 0), min(top + side, height)):
        for x in range(max(left, 0), min(left + side, width)):
            image[:, y, x] = 0
