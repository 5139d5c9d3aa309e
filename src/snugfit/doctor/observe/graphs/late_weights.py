"""Weights of rows that a loss is multiplied with when it is one number already: only their mean counts."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from snugfit.doctor.observe.graphs.graph_nodes import kind_of
from snugfit.doctor.observe.graphs.loss_graph import terms_of
from snugfit.doctor.observe.recording.internals import (
    number_beside,
    saved,
    size_before_view,
    size_of_result,
    size_of_scores,
)

LEAST_ROWS, MOST_STEPS = 4, 8
_ADDED_UP = ("Sum", "Mean")
_LOSSES = ("NllLoss", "MseLoss", "L1Loss", "SmoothL1Loss", "HuberLoss", "BinaryCrossEntropy")


class LateWeights(NamedTuple):
    """Numbers of which each belongs to a row, from the smallest to the largest, and by what the rows were brought to one number before: a mean or a sum."""

    rows: int
    least: float
    most: float
    summed: str


def weights_of_one_number(value: Tensor) -> LateWeights | None:
    """Return the weights of rows in a loss that are multiplied with a mean, or a sum, over as many rows, and added up; None without.

    >>> import torch
    >>> errors = torch.tensor([1.0, 2.0, 0.5, 3.0], requires_grad=True).exp()
    >>> weights = torch.tensor([0.1, 0.9, 0.4, 0.2])
    >>> weights_of_one_number((errors.mean() * weights).mean()).rows, weights_of_one_number((errors * weights).mean())
    (4, None)
    >>> spread = torch.tensor(0.5, requires_grad=True)  # a term that nothing made
    >>> weights_of_one_number(errors.mean() * (-spread).exp() + spread) is None
    True
    """
    for term in terms_of(value.grad_fn):
        if term.node is None or not kind_of(term.node).startswith(_ADDED_UP):
            continue
        below = term.node.next_functions[0][0]
        for _ in range(MOST_STEPS):  # signs and numbers, by which all of the products are multiplied
            parts = [] if below is None else [each for each, _ in below.next_functions]
            if kind_of(below) != "Neg" and not (kind_of(below) in ("Mul", "Div") and number_beside(below)):
                break
            below = next((each for each in parts if each is not None), None)
        late = _late(below)
        if late is not None:
            return late
    return None


def _late(node: Any) -> LateWeights | None:
    """Return the weights that a product has beside one number with a graph, which was made of as many rows."""
    parts = [] if node is None else [each for each, _ in node.next_functions]
    graphs = [each for each in parts if each is not None]
    if kind_of(node) != "Mul" or len(graphs) != 1 or size_of_result(graphs[0]) or not size_of_result(node):
        return None
    weights = saved(node, "_saved_self" if parts[0] is None else "_saved_other")
    if weights is None or weights.numel() < LEAST_ROWS or not weights.is_floating_point():
        return None
    least, most = float(weights.min()), float(weights.max())
    summed, rows = _made_of(graphs[0])
    if weights.numel() != rows or least == most:
        return None
    return LateWeights(rows, least, most, summed)


def _made_of(node: Any) -> tuple[str, int]:
    """Return by what one number was made, and of how many rows; "" and 0 where the graph does not tell."""
    for _ in range(MOST_STEPS):
        kind = kind_of(node)
        parts = [each for each, _ in node.next_functions if each is not None]
        if kind.startswith(_LOSSES):
            size = size_of_scores(node)
            return kind, size[0] if size else 0
        if kind.startswith(_ADDED_UP):
            size = size_before_view(node) or size_of_result(parts[0])
            return kind, size[0] if size else 0
        number = kind in ("Mul", "Div") and number_beside(node)
        if len(parts) != 1 or not (number or kind.startswith(("Neg", "Squeeze", "View", "ToCopy"))):
            break
        node = parts[0]
    return "", 0
