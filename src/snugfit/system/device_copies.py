"""Copies from the host to a device that go on beside the computation, where that is safe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

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
