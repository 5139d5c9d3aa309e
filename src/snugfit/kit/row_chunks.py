"""Large tensors a few rows at a time, so that what is made beside them stays small."""

from __future__ import annotations

import math
from types import EllipsisType
from typing import Any

import torch

PIECE = 2**24
"""Numbers in a piece: 64 MiB in float32, long enough for a device not to wait for its host."""

Piece = slice | EllipsisType
"""The index of some rows of a tensor, or of all of it."""


def pieces(tensor: torch.Tensor) -> list[Piece]:
    """Pieces of at most `PIECE` numbers each, or of one row; a small tensor is one piece.

    >>> pieces(torch.empty(20, 3 * 2**20, device="meta"))
    [slice(0, 5, None), slice(5, 10, None), slice(10, 15, None), slice(15, 20, None)]
    >>> pieces(torch.tensor(1.0))
    [Ellipsis]
    """
    if tensor.numel() <= PIECE:
        return [...]
    rows = max(PIECE // math.prod(tensor.shape[1:]), 1)
    return [slice(start, min(start + rows, len(tensor))) for start in range(0, len(tensor), rows)]


def piece_rows(piece: Piece) -> int | None:
    """Return how many rows a piece has; None for all of them."""
    return piece.stop - piece.start if isinstance(piece, slice) else None


def own_rows(state: Any, like: torch.Tensor, piece: Piece) -> Any:
    """Return a piece of what a state, in dicts of any depth, has for a tensor: of its shape the rows themselves, of all else copies."""
    if isinstance(state, dict):
        return {name: own_rows(value, like, piece) for name, value in state.items()}
    if not isinstance(state, torch.Tensor):
        return state
    return state[piece] if state.shape == like.shape else state.clone()


def put_rows(
    into: dict[str, Any], state: dict[str, Any], part: dict[str, Any], like: torch.Tensor, piece: Piece
) -> None:
    """Put a piece of a state back, in the tensors that `state` has for it where it has any; all else is taken over."""
    for name, value in part.items():
        whole = into.get(name, state.get(name))
        if isinstance(value, dict):
            put_rows(into.setdefault(name, {}), whole or {}, value, like, piece)
        elif isinstance(value, torch.Tensor) and value.shape == like[piece].shape:
            into[name] = torch.empty_like(like, dtype=value.dtype) if whole is None else whole
            if value._base is not into[name]:  # else it was changed in place
                into[name][piece] = value
        else:
            into[name] = value
