"""The workspace of products of matrices on a CPU: copies that BLAS can read, and what oneDNN packs.

Which way oneDNN takes for a product in bfloat16 depends on the processor, so such a product is measured at its first use.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from snugfit.planner.cost.convolution_workspace import Arguments, Rule
from snugfit.planner.cost.kernel_memory import measured_bytes

_MOST = 1024
"""Rows or columns from which on oneDNN packs hardly more, a megabyte or two at most, beside matrices that are larger by far."""

_MOST_IN_A_STACK = 8


def product(first: int) -> Rule:
    """Return a product of the two arguments from `first` on."""

    def rule(args: Arguments, _kwargs: Mapping[str, Any], _out: Tensor) -> int:
        left, right = args[first], args[first + 1]
        packed = _packed(left, right) if left.dtype == torch.bfloat16 else 0
        return _blas(left) + _blas(right) + packed

    return rule


def _blas(tensor: Tensor) -> int:
    """Return bytes of the copy of a matrix, or of a stack of them, that BLAS cannot read where it lies."""
    rows, columns = tensor.shape[-2:]
    down, along = tensor.stride()[-2:]
    fine = (along == 1 and down >= max(1, columns)) or (down == 1 and along >= max(1, rows))
    return 0 if fine else rows * columns * tensor.element_size()


def _packed(left: Tensor, right: Tensor) -> int:
    """Return what a product in bfloat16 takes within itself; of one that is larger than need be, a smaller one is measured."""
    func = torch.ops.aten.mm.default if left.dim() == 2 else torch.ops.aten.bmm.default
    with _disable_current_modes():
        return measured_bytes(func, (_smaller(left), _smaller(right)), {})


def _smaller(matrix: Tensor) -> Tensor:
    """Return a matrix, or a stack of them, of the same layout and no numbers."""
    rows, columns = (min(size, _MOST) for size in matrix.shape[-2:])
    stack = [min(size, _MOST_IN_A_STACK) for size in matrix.shape[:-2]]
    if matrix.stride(-1) == 1:
        return torch.empty(*stack, rows, columns, dtype=matrix.dtype, device="meta")
    return torch.empty(*stack, columns, rows, dtype=matrix.dtype, device="meta").transpose(-2, -1)
