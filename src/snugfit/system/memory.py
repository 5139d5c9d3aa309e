"""Memory of this process, of its device and of the machine, in bytes; and what running out of it looks like."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import torch

from snugfit.system import windows_memory

_STATM = Path("/proc/self/statm")
_MEMINFO = Path("/proc/meminfo")
_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")

_SIGNS = (
    "can't allocate memory",
    "not enough memory",
    "out of memory",
    "_ALLOC_FAILED",
    "_ALLOCATION_FAILED",
)
"""What allocators say of which torch makes no `OutOfMemoryError`: of the host, of MPS, of the libraries below it, such as cuBLAS and cuDNN."""


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether an error, or one that it was raised from, says that memory ran out.

    >>> is_out_of_memory(torch.OutOfMemoryError()), is_out_of_memory(RuntimeError("sizes do not match"))
    (True, False)
    """
    while error is not None:
        if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
            return True
        if isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS):
            return True
        error = error.__cause__
    return False


def has_statistics(device: torch.device) -> bool:
    """Return whether torch counts what is allocated on the device, by `torch.accelerator`; it does not on a CPU and on MPS.

    >>> has_statistics(torch.device("cuda")), has_statistics(torch.device("mps"))
    (True, False)
    """
    return device.type not in ("cpu", "mps")


def release_memory(device: torch.device) -> None:
    """Give back what nothing refers to any more.

    Call it when the error that told of the want is forgotten: its traceback holds every tensor of the frames
    it went through.
    """
    gc.collect()
    if device.type != "cpu":
        # not torch.accelerator's, which raises on MPS: its allocator is no "DeviceAllocator"
        torch.get_device_module(device).empty_cache()


def peak_memory_bytes(device: torch.device) -> int:
    """Return the most that was in use: allocated on an accelerator, resident on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # Windows
        return windows_memory.memory().peak
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def reset_peak_memory(device: torch.device) -> None:
    """Let `peak_memory_bytes` begin anew, where it can: what a process did before a run is no part of the run."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def memory_bytes(device: torch.device) -> int:
    """Return what is in use now: allocated on an accelerator, resident on a CPU (its peak where that is not told)."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    if sys.platform == "win32":
        return windows_memory.memory().resident
    if _STATM.exists():
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return peak_memory_bytes(device)


def machine_bytes() -> int:
    """Return the memory of the machine."""
    if sys.platform == "win32":
        return windows_memory.memory().total
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def available_bytes(device: torch.device) -> int | None:
    """Return what this process may still take; None where the system does not tell.

    On a CPU what the kernel thinks it can give without swapping, or what the control groups above this process leave, as in
    a container, if that is less.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    if device.type != "cpu":
        return None
    if sys.platform == "win32":
        return windows_memory.memory().available
    return min([*_available_by_kernel(), *_left_by_cgroups()], default=None)


def _available_by_kernel() -> Iterator[int]:
    with suppress(OSError):
        for line in _MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                yield int(line.split()[1]) * 1024


def _left_by_cgroups() -> Iterator[int]:
    """Yield what each control group with a limit leaves; of version 2 all above this process, of version 1 the container's own."""
    with suppress(OSError):
        own = next((line[3:] for line in _OWN_CGROUP.read_text().splitlines() if line.startswith("0::")), "/")
        group = _CGROUPS / own.strip("/")
        for folder in (group, *group.parents):
            if folder.is_relative_to(_CGROUPS):
                yield from _left(folder, "memory.max", "memory.current")
    yield from _left(_CGROUPS / "memory", "memory.limit_in_bytes", "memory.usage_in_bytes")


def _left(folder: Path, limit: str, used: str) -> Iterator[int]:
    with suppress(OSError, ValueError):  # no such group, or the word for no limit
        most, taken = int((folder / limit).read_text()), int((folder / used).read_text())
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        yield most - taken + int(stat.get("inactive_file", 0))  # files that were read are given up at once
