"""Memory of this process and of its device, in bytes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

_STATM = Path("/proc/self/statm")


def peak_memory_bytes(device: torch.device) -> int:
    """The most that was in use: allocated on an accelerator, resident on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def memory_bytes(device: torch.device) -> int:
    """What is in use now: allocated on an accelerator, resident on a CPU (its peak where that is not told)."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    if _STATM.exists():
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return peak_memory_bytes(device)
