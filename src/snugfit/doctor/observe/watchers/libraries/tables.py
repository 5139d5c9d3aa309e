"""Tables of pandas and of scikit-learn, and what became of their rows: arrays in the order of an index, and arrays that were scaled by their own statistics."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from snugfit.doctor.observe.watchers.rows.row_digests import row_digests

MOST_ARRAYS, MOST_NUMBERS = 64, 4_000_000
LEAST_ROWS = 16
SAMPLED = 512
_FACTORS = 65_536
_NEAR = 1e-6
MOST, FEW = 0.9, 0.01
"""Shares of an array's rows: those that are scored of one that only is, and the most of them that may be trained on too."""


@dataclass(frozen=True)
class Array:
    """An array that was made of a table.

    Args:
        at: the line that made it.
        rows: how many it has; `fingerprint` tells its values apart from those of others, whatever type they are read as later.
        index: the names of its rows, where they are no numbers that were counted anew; `names` those of its columns.
        fitted: the class of what was fitted to it and has scaled it, "" where it was fitted to other rows; `digests` are those of some of its rows.
    """

    at: str
    rows: int
    fingerprint: float
    index: Any = None
    fitted: str = ""
    columns: int = 0
    digests: frozenset[int] = field(default_factory=frozenset)
    names: frozenset[Any] = field(default_factory=frozenset)


class Tables:
    """The arrays that were made of tables."""

    def __init__(self) -> None:
        self.arrays: list[Array] = []

    def note(self, values: Any, at: str, *, table: Any = None, fitted: str = "") -> None:
        """Note an array, if it has numbers, and the table or the series that it was made of."""
        if not _is_table(values) or len(self.arrays) >= MOST_ARRAYS:
            return
        index = getattr(table, "index", None)
        index = index if hasattr(index, "is_unique") else None
        if index is not None and (len(index) != len(values) or type(index).__name__ == "RangeIndex"):
            index = None  # counted anew
        if index is None and not fitted:
            return
        digests: frozenset[int] = frozenset()
        if fitted and values.ndim == 2:
            some = np.ascontiguousarray(values[:: max(1, len(values) // SAMPLED)], dtype=np.float32)
            digests = frozenset(row_digests(torch.from_numpy(some)))
        columns = values.shape[1] if values.ndim > 1 else 1
        name = getattr(table, "name", None)
        names = frozenset(getattr(table, "columns", () if name is None else (name,)))
        self.arrays.append(
            Array(at, len(values), _fingerprint_of(values), index, fitted, columns, digests, names)
        )

    def rows_apart(self, parts: list[Any]) -> tuple[str, str] | None:
        """Return the lines that made two parts of one data set of the same rows in other orders; None where there are none."""
        known = [self._of(each) for each in parts]
        named = [each for each in known if each is not None]
        for place, one in enumerate(named):
            for other in named[place + 1 :]:
                # the same columns in two orders are negatives, or others to compare with, drawn on purpose
                if one.names.isdisjoint(other.names) and _are_other_orders(one.index, other.index):
                    return one.at, other.at
        return None

    def _of(self, values: Any) -> Array | None:
        """Return the array, with names of its rows, of which a part of a data set was made, known by its values."""
        if isinstance(values, Tensor):
            plain = values.layout is torch.strided and values.device.type == "cpu" and not values.is_nested
            values = values.detach().numpy() if plain and values.dtype is not torch.bfloat16 else None
        if not _is_table(values):
            return None
        fingerprint = _fingerprint_of(values)
        near = [
            each
            for each in self.arrays
            if each.index is not None
            and each.rows == len(values)
            and abs(each.fingerprint - fingerprint) <= _NEAR * abs(fingerprint)
        ]
        return near[-1] if near and fingerprint else None

    def scaled_alone(self, trained: set[int], evaluated: set[int]) -> tuple[Array, Array] | None:
        """Return two arrays, each of which was scaled by its own statistics: rows that were trained on, and rows that were only evaluated."""
        fitted = [each for each in self.arrays if each.digests]
        learned = [each for each in fitted if len(each.digests & trained) >= FEW * len(each.digests) + 1]
        scored = [
            each
            for each in fitted
            if len(each.digests & evaluated) >= MOST * len(each.digests)
            and len(each.digests & trained) <= FEW * len(each.digests)
        ]
        for one in learned:
            for other in scored:
                if one is not other and (one.fitted, one.columns) == (other.fitted, other.columns):
                    return one, other
        return None


def _is_table(values: Any) -> bool:
    return (
        isinstance(values, np.ndarray)
        and values.ndim in (1, 2)
        and len(values) >= LEAST_ROWS
        and values.size <= MOST_NUMBERS
        and values.dtype.kind in "fiub"
    )


def _fingerprint_of(values: np.ndarray[Any, Any]) -> float:
    """Return a sum by which values are known, also as other types of numbers and with one more axis."""
    flat = values.reshape(-1).astype(np.float32).astype(np.float64)
    return float(flat @ np.resize(_factors(), flat.size))


@cache
def _factors() -> np.ndarray[Any, Any]:
    """Return factors by a generator of their own, so that the script draws what it would draw without."""
    return np.random.Generator(np.random.PCG64(7)).uniform(0.5, 1.5, _FACTORS)


def _are_other_orders(one: Any, other: Any) -> bool:
    """Return whether two indexes name the same rows, each once, in other orders."""
    if len(one) != len(other) or one.equals(other) or not (one.is_unique and other.is_unique):
        return False
    return bool(one.isin(other).all())
