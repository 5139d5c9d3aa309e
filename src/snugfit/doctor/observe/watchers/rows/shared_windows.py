"""Windows of a series of which each overlaps with the next: of a loader's, how many lie beside one of another loader."""

from __future__ import annotations

from typing import Any

from torch.utils import data

from snugfit.doctor.observe.watchers.rows.row_digests import row_digests
from snugfit.doctor.observe.watchers.rows.whole_scales import tensors_of

LEAST_ROWS, LEAST_COLUMNS, MOST_ROWS, MOST_COLUMNS = 16, 4, 20_000, 1024
SAMPLED, MOST_LOADERS = 512, 8


class SharedWindows:
    """Digests of the rows of each loader without their last column, and without their first."""

    def __init__(self) -> None:
        self._parts: dict[int, tuple[set[int], set[int]]] = {}

    def add(self, loader: int, dataset: Any) -> list[tuple[int, int, int]]:
        """Add the rows of a loader; return the other ones beside whose windows half of these lie, or of theirs: which, how many, of how many."""
        parts = _parts_of(dataset) if len(self._parts) < MOST_LOADERS else None
        if parts is None:
            return []
        pairs = []
        for other, known in self._parts.items():
            shared = max(len(parts[0] & known[1]), len(parts[1] & known[0]))
            # the same windows are another fault
            rows = min(len(parts[0]), len(known[0]))
            if 2 * shared >= rows and not parts[0] & known[0]:
                pairs.append((other, shared, rows))
        self._parts[loader] = parts
        return pairs


def _parts_of(dataset: Any) -> tuple[set[int], set[int]] | None:
    """Return digests of rows without their last column and without their first; None where they are no windows of one series."""
    indices = None
    if isinstance(dataset, data.Subset):
        dataset, indices = dataset.dataset, list(dataset.indices)
    for whole in tensors_of(dataset):
        if whole.dim() < 2 or whole.shape[1] < LEAST_COLUMNS or whole[0].numel() > MOST_COLUMNS:
            continue
        rows = whole if indices is None else whole.detach()[indices]
        if not LEAST_ROWS <= len(rows) <= MOST_ROWS:
            continue
        some = rows[:SAMPLED]
        if set(row_digests(some[:, :-1])) & set(row_digests(some[:, 1:])):
            return set(row_digests(rows[:, :-1])), set(row_digests(rows[:, 1:]))
    return None
