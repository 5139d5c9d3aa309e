"""Copies from the host to a device that go on beside the computation, where that is safe."""

from __future__ import annotations

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
