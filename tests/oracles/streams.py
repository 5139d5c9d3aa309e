"""The rows of a run over a stream by a plain loop: blocks of a pass, each in an order of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from snugfit.core.random import derive_seed


def run(
    passes: Callable[[int], Sequence[Any]], buffer: int, seed: int, examples: int, skip: int = 0
) -> list[Any]:
    """The first examples: every pass has all its rows but the first ones, once, none of them further from its place than the buffer."""
    result: list[Any] = []
    epoch = 0
    while len(result) < examples:
        rows = list(passes(epoch))[skip:]
        for place, start in enumerate(range(0, len(rows), buffer)):
            block = rows[start : start + buffer]
            generator = torch.Generator().manual_seed(derive_seed(seed, "stream order", epoch, place))
            order = torch.randperm(len(block), generator=generator).tolist() if buffer > 1 else [0]
            result += [block[each] for each in order]
        epoch += 1
    return result[:examples]
