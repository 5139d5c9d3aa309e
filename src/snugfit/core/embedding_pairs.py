"""Texts that belong together: which other texts of a window are no negatives of a row."""

from __future__ import annotations

import torch
from torch import Tensor


def no_negatives(texts: Tensor, rows: range | None = None) -> Tensor:
    """Return which keys are no negatives of rows, as they are right too; a row's own key is not among these.

    Keys are the second texts of all rows, and behind them the further ones, row by row. Right is a key that is the row's first or second text,
    or the second text of a row with the same first text.

    Args:
        texts: numbers that tell texts apart, shape (rows, texts).
        rows: some of them, all by default.
    Returns:
        Booleans, shape (these rows, keys).

    >>> no_negatives(torch.tensor([[1, 2], [3, 4], [1, 5]])).int().tolist()
    [[0, 0, 1], [0, 0, 0], [1, 0, 0]]
    """
    rows = range(len(texts)) if rows is None else rows
    of_rows = texts[rows.start : rows.stop]
    first, second = of_rows[:, :1], of_rows[:, 1:2]
    of_first = (texts[:, 1] == first) | (texts[:, 1] == second) | (texts[:, 0] == first)
    places = torch.arange(rows.start, rows.stop, device=texts.device)
    of_first[places - rows.start, places] = False
    further = texts[:, 2:].flatten()
    return torch.cat([of_first, (further == first) | (further == second)], dim=1)
