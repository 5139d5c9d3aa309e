"""The sizes of micro-batches: those that a window may be cut into, and the windows that are not cut."""

from __future__ import annotations

from snugfit.core.batch import Batch, split
from snugfit.core.technique import Stage
from snugfit.errors import SettingError
from snugfit.step.step_views import SplitStep
from snugfit.techniques import discover

BATCH_NORM = "the model has batch norm, whose statistics are those of a micro-batch, so that its size is part of what is learned"


def is_in_micro_batches(step: SplitStep, window: Batch) -> bool:
    """Return whether a rank's part of a window is computed in several micro-batches."""
    return step.micro_batch is not None and step.micro_batch < window.rows


def sizes(rows: int, at_least: int = 1) -> list[int]:
    """Return the micro-batches that are tried for windows of that many rows: its divisors and the powers of two, the largest first.

    >>> sizes(12)
    [12, 8, 6, 4, 3, 2, 1]
    >>> sizes(7, at_least=2)
    [7, 4, 2]
    """
    powers = {1 << place for place in range(rows.bit_length())}
    divisors = {size for size in range(1, rows + 1) if rows % size == 0}
    return sorted((size for size in powers | divisors if size >= min(at_least, rows)), reverse=True)


def cut(rows: int, micro_batch: int | None, group: int = 1, paired: bool = False) -> list[range]:
    """Return the micro-batches of a window; `paired` leaves no row alone, for batch norm, which has no statistics of a single one.

    >>> cut(7, 2, paired=True)
    [range(0, 3), range(3, 5), range(5, 7)]
    """
    parts = split(rows, micro_batch, group)
    if paired and len(parts) > 1 and min(map(len, parts)) == 1:
        return split(rows, -(-rows // (len(parts) - 1)), group)
    return parts


def legal_sizes(step: SplitStep, rows: int, group: int = 1) -> list[int]:
    """Return the micro-batches that a step may take for windows of that many rows, the largest first."""
    if step.whole_windows:
        return [rows]
    return sizes(rows, max(group, 2 if step.has_batch_norm else 1))


def check_whole(step: SplitStep, window: Batch) -> None:
    """Refuse a split, into micro-batches or over ranks, that would show the loss a part of what it compares.

    Raises:
        SettingError: names the loss's remedy.
    """
    if not step.whole_windows:
        return
    size = min(window.rows, step.micro_batch or window.rows)
    if window.total > size:
        parts = "micro-batches" if window.total == window.rows else "ranks"
        raise SettingError(
            "loss",
            f"compares the rows of a window with each other, and {parts} of {size} would show it parts of the "
            f"{window.total} rows: fewer negatives, another gradient",
            f"Add the technique {coupling_techniques()}, or take the window whole.",
        )


def coupling_techniques() -> str:
    """Return the techniques that compute a loss over the whole window from parts of it."""
    techniques = discover().items()
    return " or ".join(f"'{name}'" for name, each in techniques if Stage.COUPLING in each.card.stages)
