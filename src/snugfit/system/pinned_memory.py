"""Host memory that stays where it is, from and to which a CUDA device copies by itself, at the full rate of its link."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor

from snugfit.errors import SettingError
from snugfit.units import format_bytes


def pin(memory: Tensor, owner: object, setting: str, otherwise: str) -> None:
    """Pin `memory` for as long as `owner` lives, which it must not outlive.

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
