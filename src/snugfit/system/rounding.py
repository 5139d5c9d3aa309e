"""Rounding: what the last bits of a result depend on, how they stay the same, and how far two ways to compute the same may be apart.

On x86 processors they depend on how MKL, torch's library of matrix products, adds; on devices on the operators that are taken.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.errors import SettingError

MKL_MODE = "MKL_CBWR"
"""The environment variable that names MKL's mode. MKL reads it at its first product in a process, not when torch is imported."""

DEFAULT_MKL_MODE = "AUTO"
"""The mode of runs where the user names none."""

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
WORKSPACES = (":4096:8", ":16:8")
"""Settings of cuBLAS's workspace by which its sums have one order. Source: cuBLAS's documentation, "Results reproducibility"."""

_OPERATOR = re.compile(r"(?:^|\s)(\S+) does not have a deterministic implementation")

_ALLOWED = {torch.float64: 1e-9, torch.float32: 1e-3}
_ALLOWED_16_BIT = 0.1

NO_FLOAT64 = frozenset({"mps"})
"""Kinds of devices without float64, on which every operator that makes such a tensor raises."""

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
    if not os.environ.get(MKL_MODE):
        os.environ[MKL_MODE] = DEFAULT_MKL_MODE


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
        "mkl_mode": os.environ.get(MKL_MODE, ""),
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
    f"Set {MKL_MODE}=AUTO before Python starts."
)


@contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """Temporarily compute by deterministic operators, if that is wanted.

    Raises:
        SettingError: an operator of the run has no deterministic implementation, or the environment has cuBLAS add in any order.
    """
    if not wanted:
        yield
        return
    # read when cuBLAS is first used; without one torch refuses products on CUDA
    workspace = os.environ.setdefault(WORKSPACE, WORKSPACES[0])
    if workspace not in WORKSPACES:
        raise SettingError(
            "plan.deterministic",
            f"got {WORKSPACE}={workspace}, expected {' or '.join(WORKSPACES)}",
            "Set it so before Python starts, or unset it.",
        )
    before = torch.get_deterministic_debug_mode()
    benchmark = torch.backends.cudnn.benchmark
    torch.set_deterministic_debug_mode("error")
    torch.backends.cudnn.benchmark = False  # a measured choice of kernels is another one in another run
    try:
        yield
    except RuntimeError as error:
        operator = _OPERATOR.search(str(error))
        if operator is None:
            raise
        raise SettingError(
            "plan.deterministic",
            f"the operator {operator[1]} has no deterministic implementation on this device",
            "Replace it in the model, or set plan.deterministic: false.",
        ) from error
    finally:
        torch.set_deterministic_debug_mode(before)
        torch.backends.cudnn.benchmark = benchmark


def in_float64(tensor: Tensor) -> Tensor:
    """Return the tensor in float64, for differences and norms; on the host, where its device has no float64.

    >>> in_float64(torch.ones(1))
    tensor([1.], dtype=torch.float64)
    """
    here = tensor.detach()
    return (here.cpu() if here.device.type in NO_FLOAT64 else here).double()


def allowed_rounding(module: nn.Module, device: torch.device) -> float:
    """Return a relative error that rounding through a whole model may add up to, in the coarsest type that it computes in.

    1e-9 in float64, 1e-3 in float32 (of which tensor cores keep 10 bits), 0.1 in 16 bits and in what is quantised.

    >>> allowed_rounding(nn.Linear(2, 2), torch.device("cpu"))
    0.001
    """
    dtypes = {parameter.dtype for parameter in module.parameters()}
    if torch.is_autocast_enabled(device.type):
        dtypes.add(torch.get_autocast_dtype(device.type))
    return max((_ALLOWED.get(dtype, _ALLOWED_16_BIT) for dtype in dtypes), default=_ALLOWED[torch.float32])
