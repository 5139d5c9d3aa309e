"""Rounding: how far two ways to compute the same may be apart, and the type in which they are compared."""

from __future__ import annotations

import torch
from torch import Tensor, nn

_ALLOWED = {torch.float64: 1e-9, torch.float32: 1e-3}
_ALLOWED_16_BIT = 0.1

NO_FLOAT64 = frozenset({"mps"})
"""Kinds of devices without float64, on which every operator that makes such a tensor raises."""


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
