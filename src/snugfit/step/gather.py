"""The rows of all ranks, where something compares all rows of a window with each other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from snugfit.core.batch import Batch
from snugfit.core.tree import map_tree
from snugfit.errors import PlanConflict
from snugfit.strategies.base import Strategy


def joining(strategy: Strategy, batch: Batch) -> Callable[[Tensor], Tensor]:
    """From the entries of a batch's rows on this rank to those of its rows on all ranks; gradients flow to this rank's own."""
    share = batch.share

    def joined(rows: Tensor) -> Tensor:
        if share is None or rows.ndim == 0:
            return rows
        try:
            return strategy.join(rows, share.counts)
        except ValueError as error:
            raise PlanConflict(
                "loss",
                f"rows of shape {tuple(rows.shape)} cannot be joined over ranks ({error}), which a loss that compares "
                "all rows of a window needs",
                "Give tensors of one shape a row on all ranks: embeddings, and texts padded to one length.",
            ) from error

    return joined


def rows_of_all_ranks(strategy: Strategy, batch: Batch) -> Batch:
    """Return the rows of a batch on all ranks, from those on this one."""
    if batch.share is None:
        return batch
    counts, joined = batch.share.counts, joining(strategy, batch)

    def listed(rows: Any) -> Any:
        """Return what is no tensor and has an entry a row, such as names."""
        if type(rows) not in (list, tuple):
            return rows
        rows_of_ranks = strategy.tell((rows, len(rows) == batch.rows))  # by all ranks, whatever one has
        if not all(of_rows for _, of_rows in rows_of_ranks):
            return rows
        return type(rows)(
            row for (part, _), count in zip(rows_of_ranks, counts, strict=True) for row in part[:count]
        )

    batch = batch.padded_to(max(strategy.counts(batch.padded)))
    return replace(
        batch,
        data=map_tree(joined, batch.data, listed, _not_joined),
        extras=map_tree(joined, dict(batch.extras), listed),
        rows=batch.total,
        ids=(),
        lengths=None,
        padded=0,
        share=None,
    )


def _not_joined(_packed: PackedSequence) -> NoReturn:
    raise PlanConflict(
        "loss",
        "packed sequences cannot be joined over ranks, which a loss that compares all rows of a window needs",
        "Return padded tensors from collate.",
    )
