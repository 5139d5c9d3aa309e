"""The targets of rows over the epochs: a row that comes again has the target that it had, or one that was computed anew, but not another row's."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from snugfit.doctor.observe.watchers.rows.row_digests import row_digests

LEAST_AGAIN, CHANGED, UNIQUE = 16, 0.3, 0.95
LARGEST_MEMORY = 20_000


@dataclass
class _Line:
    """The targets that one line has given to rows, and to which rows since the last backward pass; `ambiguous`: it gives a row more than one, as for each of some tasks."""

    targets: dict[int, int] = field(default_factory=dict)
    passes: int = -1
    rows: set[int] = field(default_factory=set)
    ambiguous: bool = False


class RowTargets:
    """A memory of which row had which target, by the line that computes a loss of them, and the model."""

    def __init__(self) -> None:
        self._lines: dict[tuple[str, int], _Line] = {}

    def changed(
        self, at: str, model: int, passes: int, rows: list[int], target: Tensor
    ) -> tuple[int, int] | None:
        """Return how many rows of a batch were seen before, and how many of these have the target of another row now; None for few of either.

        Args:
            at: the line that gives rows their targets, and its function.
            model: the number of the model that they went through: another one may have other targets.
            passes: backward passes before it.
            rows: digests of the rows.
            target: an answer, or some numbers, for each row.
        """
        targets = _digests(target)
        if not rows or len(targets) != len(rows) or len(set(targets)) < 2:
            return None
        line = self._lines.setdefault((at, model), _Line())
        if line.passes != passes:
            line.passes, line.rows = passes, set()
        line.ambiguous = line.ambiguous or not line.rows.isdisjoint(rows)
        line.rows.update(rows)
        if line.ambiguous or len(line.targets) > LARGEST_MEMORY:
            return None
        known = set(line.targets.values()) if target.is_floating_point() else None
        again = [
            (line.targets[row], now) for row, now in zip(rows, targets, strict=True) if row in line.targets
        ]
        other = sum(now != before and (known is None or now in known) for before, now in again)
        for row, now in zip(rows, targets, strict=True):
            line.targets.setdefault(row, now)
        alike = len(set(rows)) < UNIQUE * len(rows)  # rows that are equal may have any target
        return (
            None if alike or len(again) < LEAST_AGAIN or other < CHANGED * len(again) else (len(again), other)
        )


def _digests(target: Tensor) -> list[int]:
    """Return what tells the targets of rows: classes, or digests of several numbers; nothing where each is the place of its row."""
    if target.layout is not torch.strided or target.requires_grad:
        return []
    if target.dim() == 1 and not (target.is_floating_point() or target.is_complex()):
        classes: list[int] = target.detach().tolist()
        return [] if len(set(classes)) == len(classes) else classes
    if not target.is_floating_point() or target.dim() > 2:
        return []
    if target.numel() != len(target):
        return row_digests(target)
    numbers: list[float] = target.detach().reshape(-1).tolist()
    distinct = len(set(numbers)) >= min(LEAST_AGAIN, len(numbers))  # else classes, which rows may share
    return [hash(each) for each in numbers] if distinct else []
