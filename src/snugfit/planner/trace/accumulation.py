"""Gradients of one tensor that several operators have read.

Torch's engine adds them up in place where nobody else holds the sum, but never those of fake tensors.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_HOLDERS, _STORAGE_HOLDERS = 4, 2
"""Of a gradient that only the engine holds, as it is handed to a dispatch mode, and of its memory."""


def is_sole(gradient: Tensor) -> bool:
    """Return whether nobody but the engine holds a gradient, so that it would add to it in place.

    Source: `can_accumulate_inplace` of torch/csrc/autograd/input_buffer.cpp.
    """
    torch_c: Any = torch._C
    held: Any = gradient
    return (
        not torch.is_grad_enabled()
        and gradient.layout is torch.strided
        and held._use_count() == _HOLDERS
        and torch_c._storage_Use_Count(gradient.untyped_storage()._cdata) == _STORAGE_HOLDERS
        and torch._prims_common.is_non_overlapping_and_dense_or_false(gradient)
    )
