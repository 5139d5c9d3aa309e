"""Texts that belong together: which other texts of a window are no negatives of a row."""

from __future__ import annotations

import torch
from torch import Tensor


def no_negatives(texts: Tensor, rows: range | None = None) -> Tensor:
    """Return which keys are no negatives of rows, as they are right too; a row's own key is not among these.

    Keys are the second texts of all rows, and behind them the further ones, row by row. Right is a key that is the row's first text, or the
    second text of a row with the same first text, wherever it stands.

    Args:
        texts: numbers that tell texts apart, shape (rows, texts).
        rows: some of them, all by default.
    Returns:
        Booleans, shape (these rows, keys).

    >>> no_negatives(torch.tensor([[1, 2], [3, 4], [1, 5]])).int().tolist()
    [[0, 0, 1], [0, 0, 0], [1, 0, 0]]
    """
    rows = range(len(texts)) if rows is None else rows
    keys = torch.cat([texts[:, 1], texts[:, 2:].flatten()])
    first = texts[rows.start : rows.stop, :1]
    of_same_first = (texts[:, 0] == first).float() @ (texts[:, 1:2] == keys).float()
    right = (of_same_first > 0) | (keys == first)
    places = torch.arange(rows.start, rows.stop, device=texts.device)
    right[places - rows.start, places] = False
    return right
