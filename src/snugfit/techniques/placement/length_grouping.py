"""Rows of like length in one micro-batch, so that each is padded only to its own longest."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from snugfit.core.batch import Batch
from snugfit.core.technique import Card, Context, Family, Kind, Moment, Seams, Stage, Technique
from snugfit.errors import SettingError, SnugfitWarning


def by_length(lengths: Sequence[int], group: int = 1) -> list[int]:
    """Return the rows from the longest to the shortest; equal ones keep their order.

    The longest come first, so that a run meets its largest micro-batch at once, and memory that was taken for it serves the
    smaller ones.

    Args:
        group: neighbours that stay together, in groups of that many; an incomplete group stays at the end.

    >>> by_length([3, 9, 3, 5])
    [1, 3, 0, 2]
    >>> by_length([3, 9, 3, 5, 7], group=2)
    [0, 1, 2, 3, 4]
    """
    whole = len(lengths) - len(lengths) % group
    groups = [range(start, start + group) for start in range(0, whole, group)]
    groups.sort(key=lambda rows: max(lengths[row] for row in rows), reverse=True)
    return [row for rows in groups for row in rows] + list(range(whole, len(lengths)))


@dataclass(frozen=True)
class LengthGrouping(Technique):
    """Put the rows of a window in order of their length before it is cut into micro-batches."""

    card: ClassVar[Card] = Card(
        name="length_grouping",
        summary="Puts rows of like length into the same micro-batch, so that less of it is padding.",
        aliases=("group_by_length", "length bucketing", "bucket batching"),
        family=Family.PLACEMENT,
        source="the usual bucketing by length, within one window; torch's and fairseq's samplers do it across windows",
        seams=("batch",),
        stages=(Stage.ARRANGE,),
        kind=Kind.TOKENS,
        cost="nothing; layers draw other dropout for a row that comes to stand in another micro-batch",
        use_when="texts of different length in several micro-batches a window",
    )

    def seams(self, context: Context) -> Seams:
        return Seams(batch=_arranged)


def _arranged(window: Batch, _moment: Moment) -> Batch:
    if window.lengths is None:
        raise SettingError(
            "length_grouping",
            f"the lengths of the {window.rows} rows are not known",
            "Give batches with an 'attention_mask' of shape (rows, tokens) that is still on the host, or remove "
            "it.",
        )
    if not window.padded:
        warnings.warn(
            "length_grouping: does nothing where padding cannot be cut safely: in a window with other tensors or labels that are as wide "
            "as its tokens, and with a model that computes otherwise without padding.",
            SnugfitWarning,
            stacklevel=2,
        )
        return window
    return window.select(by_length(window.lengths, window.group))
