"""Places that a mask should hide from attention, and what is added to their scores or put in their place does not."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from snugfit.doctor.observe.graphs.graph_nodes import kind_of
from snugfit.doctor.observe.recording.internals import saved

LEAST_HIDDEN, SEEN = 8, 0.1
"""Places that are hidden, and the weight that they have on average, over that of the others, from which on they are read."""
_ADDED = "snugfit mask of zeros and ones"
_VIEWS = ("View", "Unsafe", "Expand", "Reshape", "ToCopy", "Clone", "Alias")


class Shown(NamedTuple):
    """The weight of places that a mask should hide, over that of the others; how many they are, how they were to be hidden, and whether they are those behind each place."""

    share: float
    places: int
    way: str
    causal: bool


def mark_added_mask(total: Tensor, mask: Tensor) -> None:
    """Remember with scores the mask of zeros and ones that was added to them, for as long as their graph lives."""
    metadata = getattr(total.grad_fn, "metadata", None)
    if metadata is not None and is_mask(mask) and mask.dim() > 1 and mask.numel() < total.numel() + 1:
        metadata[_ADDED] = mask.detach()


def is_mask(values: Tensor) -> bool:
    """Return whether there are zeros and ones in a tensor, and nothing else."""
    if values.numel() < 2 or values.is_complex() or values.requires_grad:
        return False
    ones = values == 1
    return bool(ones.any()) and not bool(ones.all()) and bool((ones | (values == 0)).all())


def shown_by(scores: Tensor, weights: Tensor, axis: int) -> Shown | None:
    """Return what weights a softmax gave to the places that the scores were masked at; None where they are hidden, or nothing was masked.

    Args:
        scores: what the softmax got; `weights` what it gave, over `axis`.
    """
    node: Any = scores.grad_fn
    for _ in range(8):
        if node is None or not kind_of(node).startswith(_VIEWS) or not node.next_functions:
            break
        node = node.next_functions[0][0]
    if node is None or scores.dim() < 2:
        return None
    hidden, way = _hidden(node)
    if hidden is None:
        return None
    try:
        hidden = hidden.expand_as(weights) if hidden.dim() <= weights.dim() else hidden.reshape(weights.shape)
    except RuntimeError:  # of another shape than the weights, such as that of all heads
        return None
    # a row of which nothing is left, as that of padding, gives each place the same
    whole = hidden.all(axis, keepdim=True)
    hidden = hidden & ~whole
    places = int(hidden.sum())
    others = ~hidden & ~whole.expand_as(weights)
    if places < LEAST_HIDDEN or not bool(others.any()):
        return None
    values = weights.detach().float()
    share = float(values[hidden].mean()) / max(float(values[others].mean()), 1e-12)
    if not share >= SEEN:
        return None
    square = hidden.shape[-1] == hidden.shape[-2]
    causal = square and bool((hidden == hidden.triu(1)).all())
    return Shown(share, places, way, causal)


def _hidden(node: Any) -> tuple[Tensor | None, str]:
    """Return which places a node should hide, and how."""
    kind = kind_of(node)
    if kind.startswith("MaskedFill"):
        mask = saved(node, "_saved_mask")
        return (
            None if mask is None else mask.bool()
        ), "filled with a number that is not far below the other scores"
    if kind == "Where":
        condition, parts = saved(node, "_saved_condition"), [each for each, _ in node.next_functions]
        if condition is None or len(parts) != 2 or (parts[0] is None) == (parts[1] is None):
            return None, ""
        return (
            condition if parts[0] is None else ~condition
        ), "filled with a number that is not far below the other scores"
    added = (getattr(node, "metadata", None) or {}).get(_ADDED)
    if added is not None:
        return added == 0, "a mask of zeros and ones is added to their scores"
    if kind == "Mul":
        parts = [each for each, _ in node.next_functions]
        if len(parts) == 2 and None in parts:
            mask = saved(node, "_saved_self" if parts[0] is None else "_saved_other")
            if mask is not None and is_mask(mask):
                return mask == 0, "their scores are multiplied by 0, which is a score like others"
    return None, ""
