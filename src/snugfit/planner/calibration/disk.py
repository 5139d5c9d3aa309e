"""The rate of the disk at hand: bytes per second of a file that is mapped into memory and is in none yet."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from pathlib import Path

import torch

from snugfit.system.cache_folder import cache_folder

FILE_BYTES = 2**28
_BLOCK = 2**24
_TIMES = 3


def disk_rate(folder: Path | None = None) -> float | None:
    """Return bytes per second that come from a file, read as weights are: by pages of a file that is mapped into memory.

    Args:
        folder: on the disk that is measured; without, that of the cache.
    Returns:
        None where the system cannot be told to forget a file that was just written, so that memory would be measured.
    """
    if not hasattr(os, "posix_fadvise"):
        return None
    folder = folder or cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    target = torch.empty(FILE_BYTES, dtype=torch.uint8).fill_(1)  # whose own pages are there
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        block = os.urandom(min(_BLOCK, FILE_BYTES))  # which no disk makes smaller
        for _ in range(FILE_BYTES // len(block)):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        return FILE_BYTES / statistics.median(
            _seconds(file.name, file.fileno(), target) for _ in range(_TIMES)
        )


def _seconds(name: str, descriptor: int, target: torch.Tensor) -> float:
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)  # which leaves pages that are mapped
    mapped = torch.from_file(name, shared=True, size=target.numel(), dtype=torch.uint8)
    began = time.perf_counter()
    target.copy_(mapped)
    return time.perf_counter() - began
