"""What the loops that mix examples share: the draws of a window, and the loss between two labels."""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor

from tests.oracles.loop import IGNORED, cross_entropy


def source_of(name: str, window: int) -> np.random.Generator:
    """The draws of the technique `name` in a window: a function of both and of the seed 0, as is documented."""
    digest = hashlib.blake2b(repr((0, "batch", name, window)).encode(), digest_size=8).digest()
    return np.random.default_rng(int.from_bytes(digest, "little") >> 1)


def partner_of(row: int, rows: int) -> int:
    """Rows 0 and 1 are a pair, 2 and 3, and so on; the last of an odd number is alone."""
    other = row + 1 if row % 2 == 0 else row - 1
    return other if other < rows else row


def shares_of(rows: int, alpha: float, source: np.random.Generator) -> list[float]:
    """One `λ ~ Beta(α, α)` a pair, rounded to float32; a row that is alone keeps all of itself."""
    drawn = source.beta(alpha, alpha, rows // 2).astype(np.float32)
    return [float(drawn[row // 2]) if partner_of(row, rows) != row else 1.0 for row in range(rows)]


def between(logits: Tensor, own: Tensor, other: Tensor, share: float) -> tuple[Tensor, float]:
    """`Σ λ·CE(z, y) + (1 − λ)·CE(z, y')` over the labels that count, and the sum of their shares."""
    loss, weight = torch.zeros((), dtype=logits.dtype), 0.0
    for scores, label, second in zip(
        logits.reshape(-1, logits.shape[-1]), own.reshape(-1), other.reshape(-1), strict=True
    ):
        for wanted, part in ((int(label), share), (int(second), 1 - share)):
            if wanted != IGNORED and part > 0:
                loss = loss + part * cross_entropy(scores, wanted)
                weight += part
    return loss, weight
