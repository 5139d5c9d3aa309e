"""The processor's part in the last bits of a result: how MKL, torch's library of matrix products on x86 processors, adds."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

MODE = "MKL_CBWR"
"""The environment variable that names MKL's mode. MKL reads it at its first product in a process, not when torch is imported."""

DEFAULT_MODE = "AUTO"
"""The mode of runs where the user names none."""

_PAGE = 4096
_SHIFTS = (4, 8)  # bytes: products at multiples of 16 were never seen to differ
_COMPARED = {
    "processor": "another kind of processor",
    "threads": "another number of threads",
    "mkl_mode": "another mode of MKL",
}


def fix_sums() -> None:
    """Ask MKL for sums whose order does not depend on where memory lies; a mode that the user has set stays.

    Without a mode MKL may take another kernel where a matrix does not begin at a multiple of 16 bytes, as weights in a mapped file and slices
    do not: the same numbers give other last bits once they have been copied. `AUTO` keeps MKL's fastest kernels for the processor
    (benchmarks/reproducible). It has no effect in a process in which torch has multiplied matrices before.

    Source: oneMKL's developer guide, "Obtaining Numerically Reproducible Results".
    """
    if not os.environ.get(MODE):
        os.environ[MODE] = DEFAULT_MODE


def sums_depend_on_addresses() -> bool:
    """Return whether the same products differ in this process with the address of a matrix, tried on a few small ones."""
    generator = torch.Generator().manual_seed(0)
    for size in (8, 32, 33, 384):
        rows, vector = torch.randn(7, size, generator=generator), torch.randn(size, generator=generator)
        dot, product = vector @ vector, rows @ vector
        for shift in _SHIFTS:
            moved = shifted(vector, shift)
            if not (torch.equal(moved @ vector, dot) and torch.equal(shifted(rows, shift) @ vector, product)):
                return True
    return False


def shifted(tensor: Tensor, nbytes: int) -> Tensor:
    """Return a copy of a contiguous tensor that begins `nbytes` behind the start of a page.

    >>> shifted(torch.ones(3), 20).data_ptr() % 4096
    20
    """
    memory = torch.empty(_PAGE + nbytes + tensor.nbytes, dtype=torch.uint8)
    start = -memory.data_ptr() % _PAGE + nbytes
    return memory[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape).copy_(tensor)


def arithmetic() -> dict[str, Any]:
    """Return what the last bits of a result on this machine go by, beside versions."""
    return {
        "processor": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "mkl_mode": os.environ.get(MODE, ""),
    }


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """Return a sentence for a run that goes on where last bits come out otherwise; None where nothing of that has changed.

    >>> print(changes({"processor": "AVX2", "threads": 2}, {"processor": "AVX512", "threads": 2}))
    machine: another kind of processor (AVX2 before, AVX512 now): the run goes on, equal to rounding but not bit for bit.
    """
    changed = [
        f"{words} ({before[name] or 'none'} before, {now.get(name) or 'none'} now)"
        for name, words in _COMPARED.items()
        if name in before and before[name] != now.get(name)
    ]
    if not changed:
        return None
    return f"machine: {', '.join(changed)}: the run goes on, equal to rounding but not bit for bit."


ADDRESSES = (
    "machine: in this process matrix products differ in their last bits with the address of memory, so a resumed run may differ too. "
    f"Set {MODE}=AUTO before Python starts."
)
