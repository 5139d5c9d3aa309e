"""CutMix: Yun et al. 2019, arXiv:1905.04899, section 3.1 and algorithm A1."""

from __future__ import annotations

import math
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.oracles.loop import Named, Trained, Window, differentiate, forward, plain_sgd, take
from tests.oracles.pairs import between, partner_of, source_of

Box = tuple[int, int, int, int]


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    """Pixel by pixel: inside the box the partner's, outside the own one; `λ` is the part that is outside."""
    numbers = count()

    def direction(model: nn.Module, window: Window) -> tuple[Named, float]:
        rows = len(window["labels"])
        height, width = window["pixels"].shape[2:]
        boxes = boxes_of(rows // 2, height, width, settings["alpha"], source_of("cutmix", next(numbers)))
        losses, weights = [], []
        for row in range(rows):
            own, other = take(window, [row]), take(window, [partner_of(row, rows)])
            top, bottom, left, right = boxes[row // 2] if row // 2 < len(boxes) else (0, 0, 0, 0)
            pixels = own["pixels"].clone()
            for y in range(top, bottom):
                for x in range(left, right):
                    pixels[0, :, y, x] = other["pixels"][0, :, y, x]
            share = 1 - (bottom - top) * (right - left) / (height * width)
            loss, weight = between(forward(model, {"pixels": pixels}), own["labels"], other["labels"], share)
            losses.append(loss)
            weights.append(weight)
        return differentiate(model, torch.stack(losses).sum() / sum(weights))

    return plain_sgd(model, windows, direction)


def boxes_of(pairs: int, height: int, width: int, alpha: float, source: np.random.Generator) -> list[Box]:
    """`r_w = W·√(1 − λ)`, `r_h = H·√(1 − λ)` around a uniform centre, cut off at the border."""
    shares = source.beta(alpha, alpha, pairs)
    rows, columns = source.integers(0, height, pairs), source.integers(0, width, pairs)
    boxes = []
    for share, y, x in zip(shares, rows, columns, strict=True):
        down, across = int(height * math.sqrt(1 - share)) // 2, int(width * math.sqrt(1 - share)) // 2
        y, x = int(y), int(x)
        boxes.append((max(y - down, 0), min(y + down, height), max(x - across, 0), min(x + across, width)))
    return boxes
