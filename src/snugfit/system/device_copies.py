"""Copies between the host and a device that go on beside the computation, where that is safe, and pinned memory, which CUDA copies at the full rate of its link."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from snugfit.errors import SettingError
from snugfit.units import format_bytes

COPIES_BESIDE = ("cuda", "xpu")
"""Devices that copy from and to the host while they compute, and keep what they copy from until they are done."""


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return the tensor on `device`, whatever becomes of the one on the host; only a device that keeps it meanwhile is not waited for.

    MPS reads memory that has been given up by then, and computes on with what is there (pytorch/pytorch#189690).

    >>> to_device(torch.ones(2), torch.device("cpu"))
    tensor([1., 1.])
    """
    return tensor.to(device, non_blocking=device.type in COPIES_BESIDE)


def values_on(values: Sequence[Any], device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Return numbers of the host as a tensor on `device`. `torch.tensor(values, device=device)` would wait for all it computes.

    >>> values_on([1, 2], torch.device("cpu"))
    tensor([1, 2])
    """
    return to_device(torch.tensor(values, dtype=dtype), device)


def scalar_like(number: Tensor | float, like: Tensor) -> Tensor:
    """Return a number as a scalar of the device and the type of `like`; nothing waits for the device.

    >>> scalar_like(2.0, torch.ones(3, dtype=torch.bfloat16))
    tensor(2., dtype=torch.bfloat16)
    """
    if isinstance(number, Tensor):
        return number.to(like)
    return torch.full((), number, dtype=like.dtype, device=like.device)


def pin_memory(memory: Tensor, owner: object, setting: str, otherwise: str) -> None:
    """Pin host `memory` for as long as `owner` lives, which it must not outlive.

    Torch's own pinned allocator rounds up to a power of two: with 80 blocks of 430 MB, 6 GB of nothing.

    Args:
        setting: what asks for it; otherwise: what else could be done, in words. For the error.
    Raises:
        SettingError: the system does not allow so much of it.
    """
    runtime: Any = torch.cuda.cudart()
    code = int(runtime.cudaHostRegister(memory.data_ptr(), memory.nbytes, 0))
    if code != 0:
        raise SettingError(
            setting,
            f"{format_bytes(memory.nbytes)} of host memory cannot be pinned (CUDA error {code})",
            f"Raise the limit of locked memory (ulimit -l), or {otherwise}.",
        )
    weakref.finalize(owner, _unpin, memory).atexit = False  # when the device is gone


def _unpin(memory: Tensor) -> None:
    torch.cuda.cudart().cudaHostUnregister(memory.data_ptr())
