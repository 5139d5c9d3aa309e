"""Files that this process has mapped into memory, whose pages the system gives up and reads again as it likes."""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from pathlib import Path

from torch import Tensor

_MAPS = Path("/proc/self/maps")


def bytes_in_files(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of the tensors' storages that lie in mapped files; 0 where the system does not tell.

    >>> import torch
    >>> bytes_in_files([torch.zeros(8)])
    0
    """
    ranges = _ranges()
    starts = [start for start, _ in ranges]
    sizes: dict[int, int] = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        address, size = storage.data_ptr(), storage.nbytes()
        place = bisect.bisect_right(starts, address) - 1
        if place >= 0 and address + size <= ranges[place][1]:
            sizes[address] = size
    return sum(sizes.values())


def _ranges() -> list[tuple[int, int]]:
    """Return the addresses at which files lie, in order."""
    try:
        lines = _MAPS.read_text().splitlines()
    except OSError:
        return []
    ranges = []
    for line in lines:
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5].startswith("/") and not fields[5].startswith("/dev/"):
            start, _, end = fields[0].partition("-")
            ranges.append((int(start, 16), int(end, 16)))
    return sorted(ranges)
