"""Places that are added to a series: to which axis, by the vectors of equal tokens at different places, or by what is added."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.doctor.observe.graphs.graph_nodes import kind_of
from snugfit.doctor.observe.recording.internals import saved

MOST_PAIRS, LEAST_PAIRS, MOST_STEPS = 64, 8, 64
ALIKE, APART = 0.4, 0.05
"""Shares of coordinates that are equal: of vectors that were equal before dropout took some of each, and of others."""
_VIEWS = (
    "Slice",
    "View",
    "UnsafeView",
    "Reshape",
    "Unsqueeze",
    "Squeeze",
    "Transpose",
    "Permute",
    "T",
    "Select",
    "Alias",
    "Expand",
)
_ALONG_ROWS = "snugfit added along rows"


def mark_added_along_rows(total: Tensor, one: Tensor, other: Tensor, line: str) -> None:
    """Remember with a sum the line that added, to each row of vectors, one vector for all of its places."""
    metadata = getattr(total.grad_fn, "metadata", None)
    if metadata is None or total.dim() != 3 or total.shape[1] < 2:
        return
    for each in (one, other):
        if each.dim() == 3 and each.shape[0] == total.shape[0] > 1 and each.shape[1] == 1:
            metadata[_ALONG_ROWS] = line, each


def place_of_addition(node: Any) -> tuple[str, Tensor | None]:
    """Return the line that `mark_added_along_rows` has kept with what vectors were computed from, and what was added there; "" and None without."""
    todo, seen = [node], set[Any]()
    while todo and len(seen) < MOST_STEPS:
        node = todo.pop(0)
        if node is None or node in seen:
            continue
        seen.add(node)
        line, added = (getattr(node, "metadata", None) or {}).get(_ALONG_ROWS, ("", None))
        if line:
            return str(line), added
        todo += [each for each, _ in node.next_functions]
    return "", None


def is_table_of_numbers(added: Tensor) -> bool:
    """Return whether what is added to rows is the front of a table that is learned, by the numbers of the rows in their batch.

    A whole table may have an entry for each row, as for each of some tasks or series.

    >>> table, layer = torch.nn.Parameter(torch.randn(9, 2)), torch.nn.Embedding(9, 2)
    >>> [is_table_of_numbers(each.unsqueeze(1)) for each in (table[:4], layer(torch.arange(4)), layer(torch.tensor([3, 1, 1, 0])), table[:4].exp(), table)]
    [True, True, False, False, False]
    """
    node: Any = added.grad_fn
    for _ in range(MOST_STEPS):
        if node is None or kind_of(node) == "AccumulateGrad":
            return node is not None and node.variable.numel() > added.numel()
        numbers = saved(node, "_saved_indices")
        if numbers is not None and not torch.equal(
            numbers.reshape(-1), torch.arange(len(added), device=numbers.device)
        ):
            return False
        if numbers is None and not kind_of(node).startswith(_VIEWS):
            return False
        node = node.next_functions[0][0]
    return False


class ConstantPlaces:
    """Vectors that scripts add to the rows of batches, one for all places of a row: those that are the same for other rows belong to the numbers of rows."""

    def __init__(self) -> None:
        self._inputs: Tensor | None = None
        self._others = False
        self._added: dict[str, tuple[Tensor, Tensor | None]] = {}
        self._given: set[str] = set()
        self._model: weakref.ref[nn.Module] | None = None

    def begins(self, model: nn.Module, inputs: Tensor) -> None:
        """Note whether the model is given other rows than the last time."""
        self._model = weakref.ref(model)
        before, self._inputs = self._inputs, inputs.detach().reshape(-1)[:MOST_PAIRS].clone()
        self._others = before is not None and not torch.equal(before, self._inputs)

    def are_of_rows(self, line: str, added: Tensor) -> bool:
        """Return whether what this line adds has a vector for each number of a row, whatever the rows are.

        A table that a line has read by other numbers is one of entries that are given with the rows, of which the first may be in order.
        """
        if added.requires_grad and not is_table_of_numbers(added):
            self._given.add(line)
        values = added.detach().flatten(1)
        if len(values.unique(dim=0)) < len(values) or line in self._given:
            return False
        if added.requires_grad:
            return True
        before, table = self._added.get(line, (None, None))
        self._added[line] = values, added._base
        if added._base is not None and added._base is table and table.numel() == added.numel():
            return False  # a whole table, which stays: it may have an entry for each of some series
        if self._is_whole_table(values):
            return False
        few = min(len(values), 0 if before is None else len(before))
        return self._others and before is not None and few > 1 and torch.equal(values[:few], before[:few])

    def _is_whole_table(self, values: Tensor) -> bool:
        """Return whether these are all entries of a table that the model keeps, in their order: it may have one for each of some series."""
        model = None if self._model is None else self._model()
        tables = [] if model is None else list(model.buffers())
        return any(
            each.layout is torch.strided
            and each.numel() == values.numel()
            and each.device == values.device
            and torch.equal(each.reshape(values.shape).to(values.dtype), values)
            for each in tables
        )


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
