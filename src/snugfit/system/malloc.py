"""The C library's memory on a CPU: give back what tensors no longer need."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping

MMAP_THRESHOLD = 128 * 1024
"""Bytes from which a block gets pages of its own, which go back to the system when it is freed: where glibc begins."""

OVERHEAD = 8_000_000
"""Bytes that a CPU run keeps resident beside its tensors and libraries: compiled kernels, stacks, small blocks. Measured in
benchmarks/planner/memory.py."""

_M_MMAP_THRESHOLD = -3  # malloc.h

_SETTINGS = ("mmap_threshold", "mmap_max", "trim_threshold", "top_pad")
"""What decides when memory goes back, as GLIBC_TUNABLES calls it and, in capitals, the environment."""


def tune_malloc(threshold: int = MMAP_THRESHOLD) -> bool:
    """Have large blocks given back to the system when they are freed, for the rest of this process; whether that is so now.

    glibc begins with pages of their own for blocks of 128 KiB or more, and with the first of them that is freed raises the bound to
    its size, up to 32 MiB. From then on tensors come from a heap that shrinks only at its end, so that what is freed below stays
    resident. Naming the bound keeps it.

    Args:
        threshold: bytes from which a block is given back at once.

    Does nothing, and returns False, where the C library is another one, another allocator has taken its place (such as jemalloc by
    LD_PRELOAD), or the user has said when memory goes back, by MALLOC_MMAP_THRESHOLD_ and its like or GLIBC_TUNABLES. May be called
    more than once.

    Source: mallopt(3), M_MMAP_THRESHOLD.
    """
    if not _is_glibc() or _set_by_user(os.environ) or _replaced():
        return False
    return bool(ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, threshold))


def trim_malloc() -> None:
    """Give back what lies free between blocks of the heap, as after many small ones were freed; elsewhere than in glibc nothing happens.

    Source: malloc_trim(3).
    """
    if _is_glibc():
        ctypes.CDLL(None).malloc_trim(0)


def resident_bytes(allocated_peak: int, baseline: int) -> int:
    """Return the most that a CPU run is resident with, in bytes, where `tune_malloc` is in force.

    Args:
        allocated_peak: of the tensors that the run allocates, and of what its kernels take.
        baseline: resident before, with the libraries loaded.
    """
    return baseline + allocated_peak + OVERHEAD


def _is_glibc() -> bool:
    if sys.platform != "linux":
        return False
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (ValueError, OSError):  # of another C library
        return False


def _set_by_user(environment: Mapping[str, str]) -> bool:
    """Return whether glibc was told when to give memory back as the process began.

    >>> _set_by_user({"MALLOC_MMAP_THRESHOLD_": "1000000"}), _set_by_user({"MALLOC_ARENA_MAX": "1"})
    (True, False)
    """
    tunables = environment.get("GLIBC_TUNABLES", "")
    return any(
        f"MALLOC_{name.upper()}_" in environment or f"glibc.malloc.{name}=" in tunables for name in _SETTINGS
    )


def _replaced() -> bool:
    """Return whether `malloc` in this process is not the C library's own."""
    names = ctypes.CDLL(None), ctypes.CDLL("libc.so.6")
    used, own = (ctypes.cast(each.malloc, ctypes.c_void_p).value for each in names)
    return used != own
