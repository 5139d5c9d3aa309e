"""The terms of a loss, read from the graph of their sum: which are means over the rows, and which sums."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import Tensor

from snugfit.doctor.observe.graph_nodes import kind_of
from snugfit.doctor.observe.internals import (
    averages,
    factor_of_second,
    mean_of_constant,
    number_beside,
    size_before_view,
)

_LOSSES = (
    "MseLoss",
    "L1Loss",
    "SmoothL1Loss",
    "HuberLoss",
    "BinaryCrossEntropy",
    "NllLoss",
    "SoftMarginLoss",
)
_PASSED = ("View", "Reshape", "Unsafe", "Squeeze", "Unsqueeze", "ToCopy")
MOST_NODES = 2000
LEAST_ROWS = 8
LEAST_FACTOR = 0.25
"""A sum that is multiplied by less has got its weight on purpose."""


class Term(NamedTuple):
    """A term of a sum: the node that made it, and the number by which it is multiplied."""

    node: Any
    factor: float


def sum_beside_mean(loss: Tensor, rows: int, scale: float = 1.0) -> float | None:
    """Return the factor of a term that is the sum over all rows, where another one is a mean over what was computed from the same; None without.

    Args:
        rows: of the batch.
        scale: that of the loss, which says nothing of its terms.
    """
    if rows < LEAST_ROWS or loss.numel() != 1:
        return None
    terms = list(_terms(loss.grad_fn, 1 / scale, 0))
    means = [each.node for each in terms if _is_mean(each.node)]
    for term in terms:
        if _summed_rows(term.node) == rows:
            factor, below = term.factor * _weight_of_rows(term.node), _below(term.node)
            if abs(factor) >= LEAST_FACTOR and any(below & _below(mean) for mean in means):
                return factor
    return None


def _terms(node: Any, factor: float, depth: int) -> Iterator[Term]:
    kind = kind_of(node) if node is not None else ""
    following = [] if node is None else [each for each, _ in node.next_functions]
    if node is None or depth > 16:
        return
    if kind in ("Add", "Sub") and len(following) == 2:
        alpha = factor_of_second(node)
        yield from _terms(following[0], factor, depth + 1)
        yield from _terms(following[1], factor * (alpha if kind == "Add" else -alpha), depth + 1)
    elif kind == "Neg":
        yield from _terms(following[0], -factor, depth + 1)
    elif kind in ("Mul", "Div") and following[0] is not None and following[1:] in ([], [None]):
        number = number_beside(node)
        if number:
            yield from _terms(following[0], factor * number if kind == "Mul" else factor / number, depth + 1)
    elif kind.startswith(_PASSED):
        yield from _terms(following[0], factor, depth + 1)
    else:
        yield Term(node, factor)


def _is_mean(node: Any) -> bool:
    return type(node).__name__ == "MeanBackward0" or (kind_of(node).startswith(_LOSSES) and averages(node))


def _summed_rows(node: Any) -> int:
    """Return the size of the first axis of what a node sums up as a whole; 0 where it does not."""
    size = size_before_view(node) if type(node).__name__ == "SumBackward0" else ()
    return size[0] if size else 0


def _weight_of_rows(node: Any) -> float:
    """Return the mean of what a sum multiplies its values by: one over the rows, where weights that come to 1 make it a mean."""
    weight, node = 1.0, node.next_functions[0][0]
    while node is not None and kind_of(node) in ("Mul", "Div"):
        by = mean_of_constant(node)
        if not by:
            break
        weight = weight * by if kind_of(node) == "Mul" else weight / by
        node = next((each for each, _ in node.next_functions if each is not None), None)
    return weight


def _below(node: Any) -> set[Any]:
    """Return the nodes from which one was computed, without the leaves: weights that two terms share say nothing of rows."""
    todo, seen = [node], set[Any]()
    while todo and len(seen) < MOST_NODES:
        node = todo.pop()
        for each, _ in node.next_functions:
            if each is not None and each not in seen and kind_of(each) != "AccumulateGrad":
                seen.add(each)
                todo.append(each)
    return seen
