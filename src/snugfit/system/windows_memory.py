"""Memory as Windows counts it: the one system that snugfit runs on and that has no `resource`, no `/proc` and no `sysconf`."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple


class Memory(NamedTuple):
    """Bytes: resident in this process now and at most, of the machine, and of that not in use."""

    resident: int
    peak: int
    total: int
    available: int


class _Process(ctypes.Structure):
    """PROCESS_MEMORY_COUNTERS of psapi.h."""

    _fields_ = [
        ("size", ctypes.c_uint32),
        ("page_faults", ctypes.c_uint32),
        ("peak", ctypes.c_size_t),
        ("resident", ctypes.c_size_t),
        *((f"quota_{number}", ctypes.c_size_t) for number in range(4)),
        ("page_file", ctypes.c_size_t),
        ("peak_page_file", ctypes.c_size_t),
    ]


class _Machine(ctypes.Structure):
    """MEMORYSTATUSEX of sysinfoapi.h."""

    _fields_ = [
        ("size", ctypes.c_uint32),
        ("load", ctypes.c_uint32),
        ("total", ctypes.c_ulonglong),
        ("available", ctypes.c_ulonglong),
        *((f"other_{number}", ctypes.c_ulonglong) for number in range(5)),
    ]


def memory() -> Memory:
    """Return the memory of this process and of the machine.

    Raises:
        OSError: Windows does not tell.
    """
    process, machine = _Process(), _Machine()
    process.size, machine.size = ctypes.sizeof(process), ctypes.sizeof(machine)
    library: Any = getattr(ctypes, "WinDLL")("kernel32")  # noqa: B009 - there on Windows alone
    library.GetCurrentProcess.restype = ctypes.c_void_p
    own = ctypes.c_void_p(library.GetCurrentProcess())
    answered = library.K32GetProcessMemoryInfo(own, ctypes.byref(process), process.size)
    if not (answered and library.GlobalMemoryStatusEx(ctypes.byref(machine))):
        raise OSError("Windows does not tell how much memory is in use.")
    return Memory(process.resident, process.peak, machine.total, machine.available)
