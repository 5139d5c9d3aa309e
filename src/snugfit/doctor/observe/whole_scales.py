"""Data of which all rows together were scaled, and a part of which a loader hands out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils import data

LEAST_ROWS, MOST_COLUMNS = 64, 4096
_MEAN, _DEVIATION = 1e-3, 2e-2


def scaled_together(dataset: Any) -> tuple[int, int, float] | None:
    """Return where the rows lie of which a data set has a part, how many they are, and how far the part's mean is from theirs; None without.

    They have a mean of 0 and a deviation of 1 in each column, so that it was all of them that were scaled.
    """
    for part, whole in _parts(dataset):
        if len(whole) < LEAST_ROWS or len(part) >= len(whole) or not 1 < whole[0].numel() <= MOST_COLUMNS:
            continue
        columns = whole.detach().reshape(len(whole), -1).double()
        mean, deviation = columns.mean(0), columns.std(0)
        if bool((mean.abs() < _MEAN).all()) and bool(((deviation - 1).abs() < _DEVIATION).all()):
            shift = part.detach().reshape(len(part), -1).double().mean(0).abs().max()
            return whole.untyped_storage().data_ptr(), len(whole), float(shift)
    return None


def _parts(dataset: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield tensors of a data set, each with that of which it has some of the rows."""
    if isinstance(dataset, data.Subset):
        for each in _tensors(dataset.dataset):
            yield each[list(dataset.indices)], each
        return
    for each in _tensors(dataset):
        whole = each._base
        if whole is not None and whole.dim() == each.dim() and whole.shape[1:] == each.shape[1:]:
            yield each, whole


def _tensors(dataset: Any) -> Iterator[Tensor]:
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
