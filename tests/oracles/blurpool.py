"""BlurPool: Zhang 2019, arXiv:1904.11486, section 3.2, with the filter Tri-3, `[1, 2, 1] ⊗ [1, 2, 1] / 16`, and edges repeated.

A maximum over neighbours is taken at each place, blurred, and thinned out; a convolution with a stride gets a blurred input. The net's stem is such a
maximum and such a convolution behind a first convolution.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.oracles.loop import Trained, Window, gradient_of, plain_sgd


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    _, pool, conv = model.stem
    if settings["max_pools"]:
        pool.forward = lambda inputs: blur(highest(inputs))[:, :, ::2, ::2]
    if settings["convs"]:
        conv.forward = lambda inputs: F.conv2d(blur(inputs), conv.weight, conv.bias, stride=2, padding=1)
    return plain_sgd(model, windows, gradient_of)


def highest(images: Tensor) -> Tensor:
    """The maximum of 3 × 3 neighbours at each place."""
    around = shifted(images, outside=float("-inf"))
    return torch.stack(around).amax(dim=0)


def blur(images: Tensor) -> Tensor:
    weights = [down * across / 16 for down in (1, 2, 1) for across in (1, 2, 1)]
    return sum(weight * image for weight, image in zip(weights, shifted(images, outside=None), strict=True))  # type: ignore[return-value]


def shifted(images: Tensor, outside: float | None) -> list[Tensor]:
    """The images moved by one place in each direction, from the upper left to the lower right; None repeats edges."""
    height, width = images.shape[2:]
    if outside is None:
        rows = torch.arange(-1, height + 1).clamp(0, height - 1)
        columns = torch.arange(-1, width + 1).clamp(0, width - 1)
        padded = images[:, :, rows][:, :, :, columns]
    else:
        padded = images.new_full((*images.shape[:2], height + 2, width + 2), outside)
        padded[:, :, 1:-1, 1:-1] = images
    return [padded[:, :, y : y + height, x : x + width] for y in range(3) for x in range(3)]
