"""Data frames of pandas as rows: dicts of columns by name, with values as Python has them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from snugfit.errors import DataError

_BLOCK = 10_000
"""Rows that are dicts at a time: these take many times the memory of a frame."""


def frame_rows(data: Any) -> Iterator[dict[str, Any]] | None:
    """Return the rows of a data frame, of which the index is left out; None of anything else.

    Raises:
        DataError: two of its columns have one name, of which pandas would drop one.
    """
    pandas = sys.modules.get("pandas")  # who has a frame has imported it
    if pandas is None or not isinstance(data, pandas.DataFrame):
        return None
    names = list(map(str, data.columns))
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise DataError(
            "data",
            f"the data frame has the column '{repeated[0]}' more than once",
            "Give every column its own name.",
        )
    named = data.set_axis(names, axis=1)
    blocks = (named.iloc[start : start + _BLOCK] for start in range(0, len(named), _BLOCK))
    return (row for block in blocks for row in block.to_dict("records"))


def without_frame(data: Any) -> Any:
    """Return the rows of a data frame as a list; anything else as it is."""
    rows = frame_rows(data)
    return data if rows is None else list(rows)
