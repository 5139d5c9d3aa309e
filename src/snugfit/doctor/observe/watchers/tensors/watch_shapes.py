"""Watch shapes that are broadcast: predictions and targets that are as many, and meet as a table of all pairs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from snugfit.doctor.observe.events.script_events import Broadcast, Forward
from snugfit.doctor.observe.recording.recorder import Recorder
from snugfit.doctor.observe.recording.script_frames import where


def look_at_shapes(
    recorder: Recorder, name: str, predictions: Any, targets: Any, *, tables: bool = True
) -> None:
    """Note predictions and targets that are as many and are broadcast against each other to more.

    Args:
        tables: whether neither may be such a table already; what a script computes itself may have squares and their sides.
    """
    both = isinstance(predictions, Tensor) and isinstance(targets, Tensor)
    if not both or predictions.shape == targets.shape:
        return
    table = _table_of(predictions, targets) if tables else None
    if table is None and not _meets_all(predictions, targets):
        return
    at = where() if table is None else recorder.tables.get(table, "") or where()
    shapes = list(predictions.shape), list(targets.shape)
    recorder.add(Broadcast(at, recorder.log.updates, name, *shapes))


def note_table(recorder: Recorder, one: Tensor, other: Tensor, result: Any) -> None:
    """Remember the line that made a table of all pairs of a column and of a plain row of numbers, which a loss may get."""
    columns = one.dim() != other.dim() and isinstance(result, Tensor)
    if columns and _meets_all(one, other) and recorder.active:
        recorder.tables[result.shape] = where()


def look_at_scored_shapes(recorder: Recorder, name: str, one: Any, other: Any) -> None:
    """Note a column and a plain row of as many numbers that are compared behind a forward pass without a graph.

    Rows that are compared with themselves are meant to meet each other.
    """
    if not isinstance(one, Tensor) or not isinstance(other, Tensor) or one.dim() == other.dim():
        return
    last = next((each for each in reversed(recorder.log.events[-3:]) if isinstance(each, Forward)), None)
    if last is None or last.grad or one.numel() != last.rows or not _meets_all(one, other):
        return
    if recorder.active and one.untyped_storage().data_ptr() != other.untyped_storage().data_ptr():
        recorder.add(Broadcast(where(), recorder.log.updates, name, list(one.shape), list(other.shape)))


def _meets_all(one: Tensor, other: Tensor) -> bool:
    """Return whether tensors of as many numbers are broadcast to more than there are of each."""
    if one.numel() != other.numel() or one.numel() < 2:
        return False
    shape = _together(one, other)
    return shape is not None and shape.numel() > one.numel()


def _table_of(one: Tensor, other: Tensor) -> torch.Size | None:
    """Return the shape of a square of which the other tensor has as many numbers as a side; None without."""
    less, more = sorted((one, other), key=Tensor.numel)
    side = less.numel()
    square = side > 1 and more.dim() == 2 and more.shape == (side, side)
    return more.shape if square and less.dim() in (1, 2) and less.shape[0] == side else None


def _together(one: Tensor, other: Tensor) -> torch.Size | None:
    try:
        return torch.Size(torch.broadcast_shapes(one.shape, other.shape))
    except RuntimeError:  # the script's own call says so
        return None
