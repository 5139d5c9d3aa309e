"""Divergences of a policy from another one that is to hold it, of samples, beside a gradient that advantages weigh."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.autograd.graph import GradientEdge

from snugfit.doctor.observe.graphs.graph_nodes import is_from_log_probabilities, kind_of
from snugfit.doctor.observe.graphs.term_signs import base_of, is_noise, squared_by, users_of

MOST_STEPS = 64
_SUMS = ("Add", "Sub", "Rsub")
_BOUNDED = ("Clamp", "NanToNum", "Where", "MaskedFill")


def is_of_policy(nodes: Sequence[Any]) -> bool:
    """Return whether logarithms of probabilities, or ratios of them, are multiplied by numbers of both signs, as by advantages."""
    for node in nodes:
        if kind_of(node) == "Mul" and is_noise(node):
            learned = next((each for each, _ in node.next_functions if each is not None), None)
            if is_from_log_probabilities(_unbounded(learned)):
                return True
    return False


def sampled_divergences(nodes: Sequence[Any]) -> list[GradientEdge]:
    """Return the divergences of sampled log-probabilities from constant ones: exp(d) - d - 1, or the square of d, for their difference d."""
    users = users_of(nodes)
    edges = []
    for node in nodes:
        if kind_of(node) == "Exp":
            learned = _less_constant(node.next_functions[0][0])
            top = _top(node, users)
            if learned is not None and top is not node and _has(top, learned):
                edges.append(GradientEdge(top, 0))
        elif squared_by(node) is not None and _less_constant(node.next_functions[0][0]) is not None:
            edges.append(GradientEdge(node, 0))
    return edges


def _less_constant(node: Any) -> Any:
    """Return the log-probabilities from which constants were taken at a node, or that were taken from constants; None where it is no such difference."""
    node = _unbounded(node)
    parts = [] if node is None else [each for each, _ in node.next_functions]
    learned = [each for each in parts if each is not None]
    if not kind_of(node).startswith(("Sub", "Rsub")) or len(parts) != 2 or len(learned) != 1:
        return None
    return base_of(learned[0])[0] if is_from_log_probabilities(learned[0]) else None


def _unbounded(node: Any) -> Any:
    """Return what a node was made of by bounds and numbers alone."""
    for _ in range(MOST_STEPS):
        node = base_of(node)[0]
        parts = [] if node is None else [each for each, _ in node.next_functions if each is not None]
        if len(parts) != 1 or not kind_of(node).startswith(_BOUNDED):
            break
        node = parts[0]
    return node


def _top(node: Any, users: dict[Any, list[Any]]) -> Any:
    """Return the end of the sums that a node is a part of."""
    for _ in range(MOST_STEPS):
        above = [each for each in users.get(node, []) if kind_of(each).startswith(_SUMS)]
        if not above:
            break
        node = above[0]
    return node


def _has(total: Any, part: Any) -> bool:
    """Return whether a sum has this as a part that is no exponential."""
    todo = [total]
    for _ in range(MOST_STEPS):
        if not todo:
            break
        node = _unbounded(todo.pop())
        if node is part:
            return True
        if kind_of(node).startswith((*_SUMS, "Neg")):
            todo += [each for each, _ in node.next_functions if each is not None]
    return False
