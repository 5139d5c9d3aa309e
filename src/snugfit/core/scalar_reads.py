"""The only door from a tensor to a Python decision.

On a device every pass through it waits for the device; on a fake tensor there is nothing to read, so the
caller says which answer to assume: an upper bound, such as finite, weight > 0, the k longest rows.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from snugfit.system.device_copies import COPIES_BESIDE


def read(tensor: Tensor, assume: Any) -> Any:
    """Return the value of `tensor` as Python numbers; `assume` if it is fake.

    >>> read(torch.tensor([1, 2]), assume=[0, 0])
    [1, 2]
    """
    return assume if is_fake(tensor) else tensor.detach().tolist()


def read_scalars(tensors: list[Tensor], assume: list[float]) -> list[float]:
    """Several scalars in one pass: one wait for the device, whatever their number."""
    device = None
    for tensor in tensors:
        if type(tensor) is not Tensor and is_fake(tensor):
            return assume
        if device is None and not tensor.is_cpu:
            device = tensor.device
    return list(map(Tensor.item, tensors)) if device is None else _stacked(tensors, device).tolist()


def read_scalars_later(tensors: list[Tensor], assume: list[float]) -> Callable[[], list[float]]:
    """Begin to copy several scalars to the host; what is returned gives them, and waits for that copy alone.

    What the device was asked for since goes on meanwhile. Where there are no copies beside the computation they are read at once.

    >>> read_scalars_later([torch.tensor(1.5)], assume=[0.0])()
    [1.5]
    """
    device = _device_of(tensors)
    if device is None or device.type not in COPIES_BESIDE or any(is_fake(tensor) for tensor in tensors):
        numbers = read_scalars(tensors, assume)
        return lambda: numbers
    host = _stacked(tensors, device).to("cpu", non_blocking=True)  # to pinned memory
    copied = torch.accelerator.current_stream(device).record_event()

    def arrived() -> list[float]:
        copied.synchronize()
        values: list[float] = host.tolist()
        return values

    return arrived


def _device_of(tensors: list[Tensor]) -> torch.device | None:
    """Return the accelerator that some of the tensors are on; None where all are on the host."""
    return next((tensor.device for tensor in tensors if tensor.device.type != "cpu"), None)


def _stacked(tensors: list[Tensor], device: torch.device) -> Tensor:
    # in the widest type there is among them, not in float64: MPS has none
    types = (tensor.dtype for tensor in tensors)
    widest = functools.reduce(torch.promote_types, types, torch.float32)
    return torch.stack([tensor.detach().to(device, widest) for tensor in tensors])


def is_fake(tensor: Tensor) -> bool:
    """Return whether `tensor`, or what it wraps, such as a shard, has a shape and no numbers."""
    if type(tensor) is Tensor or type(tensor) is torch.nn.Parameter:
        return False
    from torch._subclasses.fake_tensor import FakeTensor

    if is_traceable_wrapper_subclass(tensor):
        names, _ = tensor.__tensor_flatten__()
        return any(is_fake(getattr(tensor, name)) for name in names)
    return isinstance(tensor, FakeTensor)
