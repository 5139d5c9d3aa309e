"""Data of which all rows together were scaled, and a part of which a loader hands out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils import data

from snugfit.system.rounding import in_float64

LEAST_ROWS, MOST_COLUMNS = 64, 4096
LEAST_STRETCHED, MOST_EDGES, _STEP = 3, 2, 1e-3
COLUMNS = 16
"""So many are looked at together."""
_MEAN, _DEVIATION = 1e-3, 2e-2


def scaled_together(dataset: Any) -> tuple[int, int, float] | None:
    """Return where the rows lie of which a data set has a part, how many they are, and how far the part's mean is from theirs; None without.

    They have a mean of 0 and a deviation of 1 in each column, so that it was all of them that were scaled.
    """
    for whole, part in _parts(dataset):
        if len(whole) < LEAST_ROWS or not 1 < whole[0].numel() <= MOST_COLUMNS or not is_scaled(whole):
            continue
        rows = part()
        if len(rows) < len(whole):
            shift = rows.cpu().reshape(len(rows), -1).mean(0, dtype=torch.float64).abs().max()
            return whole.untyped_storage().data_ptr(), len(whole), float(shift)
    return None


def is_scaled(whole: Tensor) -> bool:
    """Return whether each column has a mean of 0 and a deviation of 1; a few at a time, since most data is not, and all is a copy."""
    for columns in whole.detach().reshape(len(whole), -1).split(COLUMNS, dim=1):
        numbers = in_float64(columns).cpu()
        near = (numbers.mean(0).abs() < _MEAN) & ((numbers.std(0) - 1).abs() < _DEVIATION)
        if not bool(near.all()):
            return False
    return True


def is_stretched(whole: Tensor) -> bool:
    """Return whether each column has a least value of 0 and a largest of 1, each in hardly any row, as one does that was scaled by its own.

    Columns of yes and no, of steps such as those of bytes, and of what was clamped have them too.
    """
    if whole.shape[1] < LEAST_STRETCHED:
        return False
    for columns in whole.detach().split(COLUMNS, dim=1):
        low, high = columns == 0, columns == 1
        rare = (low.sum(0) <= MOST_EDGES) & (high.sum(0) <= MOST_EDGES) & low.any(0) & high.any(0)
        within = bool(((columns >= 0) & (columns <= 1)).all())
        if (
            not within
            or not bool(rare.all())
            or bool(((columns * 255).round() - columns * 255).abs().max() < _STEP)
        ):
            return False
    return True


def _parts(dataset: Any) -> Iterator[tuple[Tensor, Callable[[], Tensor]]]:
    """Yield tensors of which a data set has some of the rows, and what gives these."""
    if isinstance(dataset, data.Subset):
        indices = dataset.indices
        for each in tensors_of(dataset.dataset):
            yield each, lambda each=each: each.detach()[list(indices)]  # type: ignore[misc]
        return
    for each in tensors_of(dataset):
        whole = each._base
        if whole is not None and whole.dim() == each.dim() and whole.shape[1:] == each.shape[1:]:
            yield whole, each.detach


def tensors_of(dataset: Any) -> Iterator[Tensor]:
    """Yield the tensors of numbers, with rows, that a data set has by itself."""
    if isinstance(dataset, data.TensorDataset):
        held = [*dataset.tensors]
    else:
        held = list(getattr(dataset, "__dict__", {}).values())
    for each in held:
        strided = isinstance(each, Tensor) and each.layout is torch.strided and not each.is_nested
        if (
            strided
            and each.is_floating_point()
            and each.dim() > 1
            and each.device.type == "cpu"
            and len(each)
        ):
            yield each
