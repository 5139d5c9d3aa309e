"""Data frames of pandas as rows: dicts of columns by name, with values as Python has them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

_BLOCK = 10_000
"""Rows that are dicts at a time: these take many times the memory of a frame."""


def frame_rows(data: Any) -> Iterator[dict[str, Any]] | None:
    """Return the rows of a data frame, of which the index is left out; None of anything else."""
    pandas = sys.modules.get("pandas")  # who has a frame has imported it
    if pandas is None or not isinstance(data, pandas.DataFrame):
        return None
    named = data.rename(columns=str)
    blocks = (named.iloc[start : start + _BLOCK] for start in range(0, len(named), _BLOCK))
    return (row for block in blocks for row in block.to_dict("records"))


def without_frame(data: Any) -> Any:
    """Return the rows of a data frame as a list; anything else as it is."""
    rows = frame_rows(data)
    return data if rows is None else list(rows)
