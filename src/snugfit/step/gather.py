"""The rows of all ranks, where something compares all rows of a window with each other."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NoReturn

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from snugfit.core.batch import Batch, Share, shared_out
from snugfit.core.tree import map_tree
from snugfit.errors import PlanConflict
from snugfit.strategies.base import Strategy


def joining(strategy: Strategy, batch: Batch) -> Callable[[Tensor], Tensor]:
    """Return a function from the entries of a batch's rows on this rank to those of its rows on all ranks; gradients flow to this rank's own."""
    share = batch.share

    def joined(rows: Tensor) -> Tensor:
        if share is None or rows.ndim == 0:
            return rows
        try:
            return strategy.join(rows, share.counts)
        except ValueError as error:
            raise PlanConflict(
                "loss",
                f"rows of shape {tuple(rows.shape)} cannot be joined over ranks ({error}), which a loss "
                "that compares all rows of a window needs, and groups of sam.m",
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
        extras=map_tree(joined, dict(batch.extras)),
        rows=batch.total,
        ids=(),
        lengths=None,
        padded=0,
        share=None,
    )


def whole_window(strategy: Strategy, batch: Batch) -> Batch:
    """Return the rows of all ranks with what the host knows of each, so that any of them may compute them as its own."""
    share = batch.share
    if share is None:
        return batch
    known = strategy.tell((batch.ids, batch.lengths, batch.gapless, batch.padded))
    widths = [padded for *_, padded in known]
    ranks = [(*of_rank, count) for of_rank, count in zip(known, share.counts, strict=True) if count]
    lengths = [lengths[:count] for _, lengths, _, _, count in ranks if lengths is not None]
    return replace(
        rows_of_all_ranks(strategy, batch),
        ids=tuple(each for ids, *_, count in ranks for each in ids[:count]),
        lengths=tuple(itertools.chain(*lengths)) if len(lengths) == len(ranks) else None,
        padded=max(widths) if min(widths) else 0,
        gapless=all(gapless for _, _, gapless, _, _ in ranks),
    )


def part_of_rank(strategy: Strategy, window: Batch, paired: bool) -> Batch:
    """Return what this rank computes of a window that every rank has whole; `paired` leaves no row alone, for batch norm."""
    if strategy.world_size == 1:
        return window
    together = max(window.group, 1 + paired)
    alone = int(paired and window.rows % together == 1)
    parts = shared_out(window.rows - alone, strategy.world_size, together)
    if alone:
        last = max(rank for rank, part in enumerate(parts) if part or rank == 0)
        parts[last] = range(parts[last].start, window.rows)
    own = parts[strategy.rank] or range(min(window.rows, 1 + paired))
    return replace(window.select(own), share=Share(tuple(map(len, parts)), strategy.rank, window.tokens))


def _not_joined(_packed: PackedSequence) -> NoReturn:
    raise PlanConflict(
        "loss",
        "packed sequences cannot be joined over ranks, which a loss that compares all rows of a window needs, and groups of sam.m",
        "Return padded tensors from collate.",
    )
