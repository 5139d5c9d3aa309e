"""The numbers that a technique draws for the rows of a window: a function of the run's seed (0), its name and the window's number."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor


def generator_of(name: str, window: int, seam: str = "batch") -> torch.Generator:
    text = repr((0, seam, name, window)).encode()
    seed = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") // 2
    return torch.Generator().manual_seed(seed)


def uniform(name: str, window: int, *shape: int) -> Tensor:
    return torch.rand(*shape, generator=generator_of(name, window))
