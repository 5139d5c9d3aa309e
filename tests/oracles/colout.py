"""ColOut as composer describes it: of each image some rows and columns of pixels are dropped at random, the others stay in their order."""

from __future__ import annotations

from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from tests.oracles.draws import generator_of
from tests.oracles.loop import Named, Trained, Window, gradient_of, plain_sgd


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    numbers = count()

    def direction(model: nn.Module, window: Window) -> tuple[Named, float]:
        images, source = window["pixels"], generator_of("colout", next(numbers))
        rows, _, height, width = images.shape
        down = torch.rand(rows, height, generator=source).tolist()
        across = torch.rand(rows, width, generator=source).tolist()
        smaller = [
            without(without(image, of_rows, settings["rows"]).mT, of_columns, settings["columns"]).mT
            for image, of_rows, of_columns in zip(images, down, across, strict=True)
        ]
        return gradient_of(model, {**window, "pixels": torch.stack(smaller)})

    return plain_sgd(model, windows, direction)


def without(image: Tensor, draws: list[float], part: float) -> Tensor:
    """The image without the rows of the largest draws."""
    largest = sorted(draws, reverse=True)[: int(part * len(draws))]
    return torch.stack([image[:, place] for place, draw in enumerate(draws) if draw not in largest], dim=1)
