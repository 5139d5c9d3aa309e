"""PyTorch's own record of a CUDA allocator, for its memory viewer (https://pytorch.org/memory_viz).

`torch.cuda.memory._record_memory_history` and `_dump_snapshot` are private by name; they are used here and nowhere else, and
tests/unit/planner/trace/test_memory_snapshot.py tells when they move.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

SNAPSHOT = "snapshot.pickle"
_ENTRIES = 100_000


@contextmanager
def snapshot(device: torch.device, folder: Path) -> Iterator[Path | None]:
    """Temporarily record the allocator's history; on exit, however that comes, it is written to the path that is given.

    None, and nothing, where the device is no CUDA device.
    """
    if device.type != "cuda":
        yield None
        return
    path = folder / SNAPSHOT
    torch.cuda.memory._record_memory_history(max_entries=_ENTRIES)
    try:
        yield path
    finally:
        try:
            torch.cuda.memory._dump_snapshot(str(path))
        finally:
            torch.cuda.memory._record_memory_history(enabled=None)
