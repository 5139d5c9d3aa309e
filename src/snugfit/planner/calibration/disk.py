"""The rate of the disk at hand: bytes per second of a file that is mapped into memory and is in none yet."""

from __future__ import annotations

import errno
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from snugfit.errors import SettingError
from snugfit.system.disk_files import cache_folder
from snugfit.units import format_bytes

FILE_BYTES = 2**28
_BLOCK = 2**24
_TIMES = 3
_NOT_THERE = (errno.ENOSYS, errno.EOPNOTSUPP)
"""What a sandbox says of calls that it does not have."""


def disk_rate(folder: Path | None = None) -> float | None:
    """Return bytes per second that come from a file, read as weights are: by pages of a file that is mapped into memory.

    Args:
        folder: on the disk that is measured; without, that of the cache.
    Returns:
        None where the system cannot be told to forget a file that was just written, so that memory would be measured.
    Raises:
        SettingError: no file of 256 MiB can be written there.
    """
    if not hasattr(os, "posix_fadvise"):
        return None

    def forget(descriptor: int) -> None:
        """Take a file's pages out of memory, but for those that are mapped."""
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

    folder = folder or cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return FILE_BYTES / statistics.median(_seconds_in(folder, forget))
    except OSError as error:
        if error.errno in _NOT_THERE:
            return None
        raise SettingError(
            "calibrate",
            f"the disk of '{folder}' cannot be measured by a file of {format_bytes(FILE_BYTES)}: {error.strerror or error}",
            "Free space there, or name another folder by XDG_CACHE_HOME.",
        ) from error


def _seconds_in(folder: Path, forget: Callable[[int], None]) -> list[float]:
    """Return seconds of readings of a file that is written to the folder, and is gone afterwards."""
    target = torch.empty(FILE_BYTES, dtype=torch.uint8).fill_(1)  # whose own pages are there
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        block = os.urandom(min(_BLOCK, FILE_BYTES))  # which no disk makes smaller
        for _ in range(FILE_BYTES // len(block)):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        seconds = []
        for _ in range(_TIMES):
            forget(file.fileno())
            mapped = torch.from_file(file.name, shared=True, size=target.numel(), dtype=torch.uint8)
            began = time.perf_counter()
            target.copy_(mapped)
            seconds.append(time.perf_counter() - began)
            del mapped
        return seconds
