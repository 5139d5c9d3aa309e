"""Batches that are slices of one table: those of which each begins a row after the last leave most rows out."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

LEAST_BATCHES, LEAST_SIZE = 6, 4
LEAST_LEFT = 0.5
"""Share of the rows that are left out."""
MOST_OFF = 1.05


@dataclass
class _Pass:
    """The slices of one table since the first of its rows.

    Args:
        step: how many rows each begins behind the last; 0 where there is one alone, -1 where they differ.
    """

    at: str
    first: int
    last: int
    size: int
    count: int = 1
    step: int = 0


@dataclass(frozen=True)
class LeftOut:
    """Rows that no slice has: each began `step` rows behind the last one of `size`, and they end before row `end` of `rows`."""

    at: str
    step: int
    size: int
    end: int
    rows: int


class RowSteps:
    """The slices that a script takes of its tables, in the order of its training."""

    def __init__(self) -> None:
        self._passes: dict[int, _Pass] = {}
        self.left_out: LeftOut | None = None

    def note(self, batch: Tensor, at: str) -> None:
        """Note a batch that is trained on."""
        whole = batch._base
        if (
            self.left_out is not None
            or whole is None
            or batch.dim() != whole.dim()
            or not batch.stride(0)
            or batch.shape[1:] != whole.shape[1:]
            or batch.stride() != whole.stride()
        ):
            return
        table = whole.data_ptr()
        start, size = (batch.storage_offset() - whole.storage_offset()) // batch.stride(0), len(batch)
        known = self._passes.get(table)
        if known is None or start <= known.last:
            if known is not None and start == known.first:
                self._end(known, len(whole))
            self._passes[table] = _Pass(at, start, start, size)
            return
        step = start - known.last
        known.step = step if known.step in (0, step) else -1
        known.last, known.count, known.size = start, known.count + 1, max(known.size, size)

    def _end(self, known: _Pass, rows: int) -> None:
        """Look at a pass whose first slice comes again: as many as all rows would need, and each overlaps the last."""
        end = known.last + known.size
        few = end - known.first <= (1 - LEAST_LEFT) * (rows - known.first)
        overlaps = 0 < known.step < known.size and known.size >= LEAST_SIZE
        enough = known.count * known.size <= MOST_OFF * (rows - known.first) + known.size
        whole = known.count * known.size >= LEAST_LEFT * (rows - known.first)
        if known.count >= LEAST_BATCHES and overlaps and few and enough and whole:
            self.left_out = LeftOut(known.at, known.step, known.size, end, rows)
