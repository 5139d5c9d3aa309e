"""Columns of a batch that tell its targets."""

from __future__ import annotations

import torch
from torch import Tensor

MOST_COLUMNS = 4096
LEAST_ROWS = 8
LEAST_REPEATED = 6
"""Different rows beyond one of each class: a column that has nothing to do with the classes does not fit so many by chance. A row that was
drawn twice, as from the memory of an agent, has its target twice, and says nothing."""


def column_of_target(batch: Tensor, target: Tensor) -> tuple[int, int, bool] | None:
    """Return the place of a column that tells every row's class, or of one of the last row of a window, or the last column, if it is the target, how many there are, and which it is.

    Args:
        batch: rows on the first axis.
        target: one for each row: classes, or numbers.
    """
    rows = batch.shape[0] if batch.dim() > 1 else 0
    if (
        rows < LEAST_ROWS
        or target.numel() != rows
        or target.shape[0] != rows
        or not batch.is_floating_point()
        or batch.device != target.device
    ):
        return None
    columns = batch.detach().reshape(rows, -1)
    if not 3 <= columns.shape[1] <= MOST_COLUMNS:
        return None
    wanted = target.detach().reshape(-1)
    classes = wanted.unique()
    if len(classes) < 2 or bool(classes.isnan().any()):
        return None
    if rows - len(classes) >= LEAST_REPEATED:
        place, exact = _one_value_each(columns, wanted, classes), False
        if place is not None and len(columns.unique(dim=0)) - len(classes) < LEAST_REPEATED:
            return None
    else:
        # another one than the last is what an exercise learns; of a window it is one of its last row
        width = batch.shape[2] if batch.dim() == 3 else 1
        same = (columns[:, -width:] == wanted.to(columns.dtype)[:, None]).all(0).nonzero()[:, 0]
        place, exact = (columns.shape[1] - width + int(same[0]) if len(same) else None), True
    return None if place is None else (place, columns.shape[1], exact)


def _one_value_each(columns: Tensor, wanted: Tensor, classes: Tensor) -> int | None:
    """Return the first column with one value for all rows of a class, another for each class."""
    candidates = (columns.amax(0) > columns.amin(0)).nonzero()[:, 0]
    values: list[Tensor] = []
    for each in classes:
        rows = columns[wanted == each][:, candidates]
        same = rows.amax(0) == rows.amin(0)
        candidates, values = candidates[same], [value[same] for value in values]
        values.append(rows[0][same])
        if not len(candidates):
            return None
    ordered = torch.stack(values).sort(0).values
    apart = (ordered[1:] > ordered[:-1]).all(0)
    return int(candidates[apart][0]) if bool(apart.any()) else None


LEAST_ORDERED = 16


def ordered_column(batch: Tensor, target: Tensor) -> int | None:
    """Return the column of a table whose values are in the same order as the targets, or in the opposite one, without an exception; None without.

    Args:
        batch: rows and three columns or more.
        target: a number for each row, of which nearly all differ.

    >>> rows = torch.rand(20, 3)
    >>> ordered_column(rows, (-3 * rows[:, 1]).exp()), ordered_column(rows, rows.sum(1))
    (1, None)
    """
    rows = len(batch)
    if (
        batch.dim() != 2
        or not 3 <= batch.shape[1] <= MOST_COLUMNS
        or not (batch.is_floating_point() and target.is_floating_point())
        or target.numel() != rows
        or batch.device != target.device
    ):
        return None
    wanted = target.detach().reshape(-1)
    if len(wanted.unique()) < max(LEAST_ORDERED, rows // 2):
        return None
    steps = batch.detach()[wanted.argsort()].diff(dim=0)
    moves = (steps != 0).sum(0) >= max(LEAST_ORDERED, rows // 2) - 1
    ordered = ((steps >= 0).all(0) | (steps <= 0).all(0)) & moves
    return int(ordered.nonzero()[0]) if bool(ordered.any()) else None
