"""The workspace of products of matrices on a CPU: copies that BLAS can read, and what oneDNN packs.

Which way oneDNN takes for a product in bfloat16 is not known: `workspace.json` has what `benchmarks/planner/workspace.py` measured.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

import torch
from torch import Tensor

from snugfit.planner.cost.convolutions import Arguments, Rule


def product(first: int) -> Rule:
    """Return a product of the two arguments from `first` on."""

    def rule(args: Arguments, _kwargs: Mapping[str, Any], _out: Tensor) -> int:
        left, right = args[first], args[first + 1]
        copied = _blas(left) + _blas(right)
        if left.dtype == torch.bfloat16 and left.dim() == 2:
            layout = "tn" if left.stride(-1) != 1 else "nt" if right.stride(-1) != 1 else "nn"
            return copied + _packed(layout, (*left.shape, right.shape[1]))
        return copied

    return rule


def _blas(tensor: Tensor) -> int:
    """Return bytes of the copy of a matrix, or of a stack of them, that BLAS cannot read where it lies."""
    rows, columns = tensor.shape[-2:]
    down, along = tensor.stride()[-2:]
    fine = (along == 1 and down >= max(1, columns)) or (down == 1 and along >= max(1, rows))
    return 0 if fine else rows * columns * tensor.element_size()


def _packed(layout: str, sizes: Sequence[int]) -> int:
    """Return what a product in bfloat16 takes, between the nearest that were measured.

    Args:
        layout: of the factors: "nn", "nt" with the second one transposed, "tn" with the first.
        sizes: rows, inner dimension and columns.
    """
    table = _table()
    axis, threads = table["sizes"], min(torch.get_num_threads(), len(table["threads"]))
    measured = table["threads"][threads - 1][layout]
    corners = [(0, 1.0)]
    for size in sizes:
        place = min(max(bisect_right(axis, size) - 1, 0), len(axis) - 2)
        share = math.log(size / axis[place]) / math.log(axis[place + 1] / axis[place])
        share = min(max(share, 0.0), 1.0)
        corners = [
            (len(axis) * number + place + step, weight * part)
            for number, weight in corners
            for step, part in ((0, 1 - share), (1, share))
        ]
    return round(math.exp(sum(weight * math.log(measured[number] + 1) for number, weight in corners))) - 1


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads((resources.files(__package__) / "workspace.json").read_text())
    return table
