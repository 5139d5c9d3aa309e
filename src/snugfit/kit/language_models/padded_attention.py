"""Attention of a next token over a cache whose rows are padded: each row by itself over its own keys, without a mask.

A kernel with a mask gives all keys of a row and a head to one block of the card, so that a few long answers leave most of it idle. The flash
kernel splits the keys among blocks (Flash-Decoding), and takes no mask: here each row is a view of its keys from the first one on, and asks for none.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from snugfit.core.scalar_reads import read
from snugfit.kit.language_models.attention_function import Attend, attention_has_other_scores, replaced_sdpa

LEAST_KEYS = 16384
"""Keys from which on a kernel for each row takes less time than one with a mask for all, also where the host is slower than the card (docs/answers.md)."""

_HALF = (torch.float16, torch.bfloat16)
"""What the flash kernel computes in."""

_MOST_MASKS = 4
"""Kinds of layers that have a mask each."""


def row_by_row(least_keys: int = LEAST_KEYS) -> AbstractContextManager[None]:
    """Temporarily let transformers' `sdpa` attend with a single query over each row's own keys, where there are so many and a mask has left some out."""
    return replaced_sdpa(_RowByRow(least_keys))


class _RowByRow:
    def __init__(self, least_keys: int) -> None:
        self._least = least_keys
        self._known: list[tuple[Tensor, list[tuple[int, int]] | None]] = []

    def __call__(
        self,
        with_mask: Attend,
        module: torch.nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        **more: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Return the outputs of attention, shape (rows, 1, heads, dim), for queries of shape (rows, heads, 1, dim)."""
        spans = None
        if (
            attention_mask is not None
            and query.shape[2] == 1
            and key.shape[2] >= self._least
            and (query.dtype in _HALF or not query.is_cuda)
            and dropout == 0
            and not attention_has_other_scores(more)
        ):
            spans = self._spans(attention_mask, key)
        if spans is None:
            return with_mask(
                module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **more
            )
        rows = [
            scaled_dot_product_attention(
                query[row : row + 1],
                key[row : row + 1, :, start:end],
                value[row : row + 1, :, start:end],
                scale=scaling,
                enable_gqa=query.shape[1] != key.shape[1],
            )
            for row, (start, end) in enumerate(spans)
        ]
        return torch.cat(rows).transpose(1, 2).contiguous(), None

    def _spans(self, mask: Tensor, key: Tensor) -> list[tuple[int, int]] | None:
        """Return the first key of each row and the one behind its last; None where a mask says more than that."""
        for known, spans in self._known:
            if known is mask:  # that of another layer of this token
                return spans
        spans = _spans_of(mask) if mask.shape == (key.shape[0], 1, 1, key.shape[2]) else None
        self._known = [*self._known[1 - _MOST_MASKS :], (mask, spans)]
        return spans


def _spans_of(mask: Tensor) -> list[tuple[int, int]] | None:
    if mask.dtype != torch.bool:
        return None
    seen = mask[:, 0, 0].int()
    length = seen.shape[1]
    first, behind = seen.argmax(dim=1), length - seen.flip(1).argmax(dim=1)
    spans = read(
        torch.stack([first, behind, seen.sum(dim=1)], dim=1), assume=[[0, length, length]] * len(seen)
    )
    whole = all(count and count == end - start for start, end, count in spans)
    return [(start, end) for start, end, _ in spans] if whole else None
