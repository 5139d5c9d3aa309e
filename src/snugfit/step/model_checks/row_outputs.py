"""A window's outputs from those of its micro-batches, whose padding may have been cut to other widths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from snugfit.core.batch import Batch
from snugfit.core.tree import joined, leaves, map_tree


def join_outputs(outputs: Sequence[Any], parts: Sequence[Batch], padded: int) -> Any:
    """Return one structure of all outputs, their tensors joined along the rows.

    What has one entry a token, shape (rows, tokens, ...), gets zeros where the micro-batch's padding was cut.

    Args:
        padded: the width of the window's tokens; 0 where none is cut.
    Raises:
        RuntimeError: tensors have other shapes for another reason.
    """
    columns = zip(*(list(leaves(each)) for each in outputs), strict=True)
    by_token = [
        all(
            tensor.ndim > 2 and tensor.shape[1] == part.padded
            for tensor, part in zip(column, parts, strict=True)
        )
        for column in columns
    ]
    if not padded or not any(by_token):
        return joined(list(outputs))

    def widened(tree: Any) -> Any:
        places = iter(by_token)

        def widen(tensor: Tensor) -> Tensor:
            return _with_width(tensor, padded) if next(places) else tensor

        return map_tree(widen, tree)

    return joined([widened(each) for each in outputs])


def _with_width(tensor: Tensor, width: int) -> Tensor:
    return F.pad(tensor, (*(0, 0) * (tensor.ndim - 2), 0, width - tensor.shape[1]))
