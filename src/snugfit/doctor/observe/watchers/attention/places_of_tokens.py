"""Vectors of equal tokens at different places and in different rows, which tell whether a model knows where a token stands."""

from __future__ import annotations

from typing import Any

from torch import Tensor

MOST_PAIRS, LEAST_PAIRS, MOST_STEPS = 64, 8, 64
ALIKE, APART = 0.4, 0.05
"""Shares of coordinates that are equal: of vectors that were equal before dropout took some of each, and of others."""
_ALONG_ROWS = "snugfit added along rows"


def mark_added_along_rows(total: Tensor, one: Tensor, other: Tensor, line: str) -> None:
    """Remember with a sum the line that added, to each row of vectors, one vector for all of its places."""
    metadata = getattr(total.grad_fn, "metadata", None)
    if metadata is None or total.dim() != 3 or total.shape[1] < 2:
        return
    for each in (one, other):
        if each.dim() == 3 and each.shape[0] == total.shape[0] > 1 and each.shape[1] == 1:
            metadata[_ALONG_ROWS] = line


def place_of_addition(node: Any) -> str:
    """Return the line that `mark_added_along_rows` has kept with what vectors were computed from; "" without."""
    todo, seen = [node], set[Any]()
    while todo and len(seen) < MOST_STEPS:
        node = todo.pop(0)
        if node is None or node in seen:
            continue
        seen.add(node)
        line = (getattr(node, "metadata", None) or {}).get(_ALONG_ROWS)
        if line:
            return str(line)
        todo += [each for each, _ in node.next_functions]
    return ""


def are_alike(vectors: Tensor, tokens: Tensor) -> tuple[bool, bool]:
    """Return whether equal tokens at different places of a row have equal vectors, and whether those of different rows have.

    Args:
        vectors: rows, places and values; `tokens` rows and places.
    """
    rows, length = tokens.shape
    flat, values = tokens.reshape(-1), vectors.detach().reshape(rows * length, -1)
    order = flat.argsort(stable=True)
    first, second = order[:-1], order[1:]
    same = flat[first] == flat[second]
    first, second = first[same], second[same]
    in_row = first // length == second // length
    within = _share(values, first[in_row], second[in_row])
    between = _share(values, first[~in_row], second[~in_row])
    return within >= ALIKE, not 0 <= between <= APART


def _share(values: Tensor, first: Tensor, second: Tensor) -> float:
    """Return the share of coordinates in which pairs are equal; -1 where there are too few."""
    if len(first) < LEAST_PAIRS:
        return -1.0
    return float((values[first[:MOST_PAIRS]] == values[second[:MOST_PAIRS]]).float().mean())
