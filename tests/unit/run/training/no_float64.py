"""A device without float64, pretended on the CPU: what would raise there raises here."""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from snugfit.step.metrics.all_rows_metrics import Collected
from snugfit.system.rounding import in_float64

_WIDE = (torch.float64, torch.complex128)
_NUMBER = (
    torch.ops.aten.scalar_tensor.default
)  # what torch.where makes of a number, in the type of the other tensor


class Float64Error(BaseException):
    """Not an `Exception`: what is tried on a first window may fail, and this must not pass for that."""


class WithoutFloat64(TorchDispatchMode):
    """Refuses float64 as MPS does, but for what `in_float64` brings to the host, and metrics of predictions that were kept there.

    On a Mac that is on the host: so an operator that takes some of it beside tensors of the device raises too. Only a Mac shows
    operators that it lacks for other reasons.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _within(Collected.compute):
            return func(*args, **(kwargs or {}))
        given = [each for each in tree_leaves((args, kwargs or {})) if isinstance(each, Tensor)]
        on_host = any(tensor.dtype in _WIDE for tensor in given)
        results = func(*args, **(kwargs or {}))
        made = [each for each in tree_leaves(results) if isinstance(each, Tensor)]
        if on_host:
            apart = [tensor.dtype for tensor in given if tensor.dtype not in _WIDE and tensor.ndim]
            if apart and torch.bool not in apart:
                raise Float64Error(f"{func}: float64 of the host beside {apart[0]} of the device")
        elif (
            func is not _NUMBER and any(tensor.dtype in _WIDE for tensor in made) and not _within(in_float64)
        ):
            raise Float64Error(f"{func}: makes float64, which MPS does not support")
        return results


def _within(function: Any) -> bool:
    frame = sys._getframe()
    while frame is not None:
        if frame.f_code is function.__code__:
            return True
        frame = frame.f_back
    return False
