"""Stochastic depth: Huang et al. 2016, arXiv:1603.09382, equations 2 and 5, with the scaling moved to training.

`H_l = H_{l−1} + b_l/p_l · (f_l(H_{l−1}) − H_{l−1})`, `b_l` of 1 with the probability `p_l = 1 − l/L · rate`. The model has
one block, so that l = L = 1. The draws are those of the run's seed (0), one row of numbers a row of the window.
"""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from torch import Tensor, nn

from tests.oracles.loop import Named, Trained, Window, gradient_of, plain_sgd


def train(model: nn.Module, windows: list[Window], settings: dict[str, Any], total: int) -> Trained:
    numbers = iter(range(len(windows)))
    rate, block = settings["rate"], model.block
    whole = block.forward

    def direction(model: nn.Module, window: Window) -> tuple[Named, float]:
        draws_left = iter(draws(next(numbers), len(window["labels"]), rate))

        def thinned(hidden: Tensor, src_key_padding_mask: Tensor) -> Tensor:
            if not next(draws_left):
                return hidden
            return hidden + (whole(hidden, src_key_padding_mask=src_key_padding_mask) - hidden) / (1 - rate)

        block.forward = thinned
        return gradient_of(model, window)

    return plain_sgd(model, windows, direction)


def draws(number: int, rows: int, rate: float) -> list[bool]:
    """Which rows of the window of this number go through the block."""
    text = repr((0, "batch", "stochastic_depth", number)).encode()
    seed = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") // 2
    numbers = torch.rand(rows, 1, generator=torch.Generator().manual_seed(seed))
    return [float(value) >= rate for value in numbers]
