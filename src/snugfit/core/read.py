"""The only door from a tensor to a Python decision.

On a device every pass through it waits for the device; on a fake tensor there is nothing to read, so the
caller says which answer to assume: an upper bound, such as finite, weight > 0, the k longest rows.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass


def read(tensor: Tensor, assume: Any) -> Any:
    """The value of `tensor` as Python numbers; `assume` if it is fake.

    >>> read(torch.tensor([1, 2]), assume=[0, 0])
    [1, 2]
    """
    return assume if is_fake(tensor) else tensor.detach().tolist()


def read_scalars(tensors: list[Tensor], assume: list[float]) -> list[float]:
    """Several scalars in one pass: one wait for the device, whatever their number."""
    if any(is_fake(tensor) for tensor in tensors):
        return assume
    device = next((tensor.device for tensor in tensors if tensor.device.type != "cpu"), None)
    if device is None:
        return [tensor.item() for tensor in tensors]
    # in the widest type there is among them, not in float64: MPS has none
    types = (tensor.dtype for tensor in tensors)
    widest = functools.reduce(torch.promote_types, types, torch.float32)
    return torch.stack([tensor.detach().to(device, widest) for tensor in tensors]).tolist()


def is_fake(tensor: Tensor) -> bool:
    """Whether `tensor`, or what it wraps, such as a shard, has a shape and no numbers."""
    if type(tensor) is Tensor or type(tensor) is torch.nn.Parameter:
        return False
    from torch._subclasses.fake_tensor import FakeTensor

    if is_traceable_wrapper_subclass(tensor):
        names, _ = tensor.__tensor_flatten__()
        return any(is_fake(getattr(tensor, name)) for name in names)
    return isinstance(tensor, FakeTensor)
