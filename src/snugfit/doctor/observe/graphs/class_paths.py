"""The way of the classes from the last layer to a loss: on which axis they lie behind each view, and whether a reshape has mixed them with places."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from snugfit.doctor.observe.graphs.graph_nodes import kind_of, line_of
from snugfit.doctor.observe.recording.internals import (
    axis_of_softmax,
    moved_axes,
    size_before_view,
    size_of_result,
)

_LINEAR = ("Addmm", "Mm", "MkldnnLinear")
_CONVOLUTIONS = ("Convolution", "MkldnnConvolution", "SlowConv")
_VIEWS = ("View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze")
_SAME = ("Clone", "Slice", "ToCopy", "Mul", "Div", "LogSoftmax", "Softmax", "Alias")
"""What leaves each value at its place, where it has one operand with a graph."""
MOST_STEPS = 24


def mixed_classes(scores: Tensor, axis: int) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the sizes before and behind a view, or of the last layer's result twice, where the classes are not those of that layer; None where they are.

    Args:
        axis: on which a loss takes the classes.
    """
    for node, kind, before_it, size, place in _way_up(scores, axis, _SAME):
        if kind.startswith(_LINEAR):
            return None  # likenesses of all rows are transposed on purpose
        if kind.startswith(_CONVOLUTIONS):
            # a softmax over places, with a target for each channel, is meant
            return (size, size) if place != 1 and size[1] == scores.shape[axis] else None
        if kind.startswith(_VIEWS) and _place_before(node, size, place) is None:
            before = _size_before(node)
            mixed = _has_classes(before_it, before, scores.shape[axis]) or _lies_in_places(
                before_it, size, place
            )
            return (before, size) if mixed else None
    return None


def other_softmax(scores: Tensor, axis: int) -> tuple[tuple[int, ...], int, int, str] | None:
    """Return a softmax that ran over another axis than that of the classes: the size of its result, its axis, that of the classes, and its line.

    None where it is the right one, or where there is none on the way that has more than two axes.
    """
    for node, kind, _, size, place in _way_up(scores, axis, (*_SAME, "Log", "Clamp", "Add")):
        if kind in ("LogSoftmax", "Softmax"):
            over = axis_of_softmax(node)
            apart = over is not None and over != place and len(size) > 2
            return (size, over, place, line_of(node)) if apart and over is not None else None
    return None


def _way_up(
    scores: Tensor, axis: int, through: tuple[str, ...]
) -> Iterator[tuple[Any, str, Any, tuple[int, ...], int]]:
    """Yield what has made scores, the last first, for as long as it is known on which axis the classes lie.

    Args:
        axis: on which they lie in the scores.
        through: kinds of nodes, beside views, that leave each value at its place, where they have one operand with a graph.
    Yields:
        A node, its kind, the node before it, the size of its result, and the axis of the classes there.
    """
    node, classes = scores.grad_fn, scores.shape[axis]
    for _ in range(MOST_STEPS):
        parts = [] if node is None else [each for each, _ in node.next_functions if each is not None]
        size = size_of_result(node)
        if not parts or len(size) <= axis or size[axis] != classes:
            return
        kind = kind_of(node)
        yield node, kind, parts[0], size, axis
        place: int | None = axis if kind.startswith(through) and len(parts) == 1 else None
        if kind.startswith(_VIEWS):
            place = _place_before(node, size, axis)
        elif kind in ("Transpose", "Permute", "T"):
            order = moved_axes(node, len(size))
            place = None if order is None else order[axis]
        if place is None:
            return
        node, axis = parts[0], place


def _size_before(view: Any) -> tuple[int, ...]:
    """Return the size of what a view was taken of: where its node does not remember it, that of what the one before gave."""
    return size_before_view(view) or size_of_result(view.next_functions[0][0])


def _place_before(view: Any, size: tuple[int, ...], axis: int) -> int | None:
    """Return which axis was this one before a view; None where there was none of its length and stride."""
    before, stride = _size_before(view), math.prod(size[axis + 1 :])
    for place, length in enumerate(before):
        if length == size[axis] and math.prod(before[place + 1 :]) == stride:
            return place
    return None


def _lies_in_places(node: Any, size: tuple[int, ...], axis: int) -> bool:
    """Return whether an axis of a view of what a convolution made, for several classes or boxes at each place, is made of neighbouring places.

    Its channels, or all places together, are no such axis.
    """
    made = _size_of_convolution(node)
    if len(made) < 3 or made[1] % size[axis] or made[1] == size[axis]:
        return False
    whole = {math.prod(made[place:]) for place in range(2, len(made) + 1)}
    stride = math.prod(size[axis + 1 :])
    return stride < max(whole) and not {stride, stride * size[axis]} <= whole


def _size_of_convolution(node: Any) -> tuple[int, ...]:
    """Return the size of what a convolution gave, of which each number is still where it lay; () where something else did."""
    for _ in range(MOST_STEPS):
        if node is None or kind_of(node).startswith(_CONVOLUTIONS):
            return () if node is None else size_of_result(node)
        parts = [each for each, _ in node.next_functions if each is not None]
        if len(parts) != 1 or not kind_of(node).startswith((*_SAME, *_VIEWS)) or kind_of(node) == "Slice":
            return ()
        node = parts[0]
    return ()


def _has_classes(node: Any, size: tuple[int, ...], classes: int) -> bool:
    """Return whether a value of this size has the classes where the layer that made it puts them: the last axis of a linear one, the second of a convolution."""
    axis = -1
    for _ in range(MOST_STEPS):
        kind = kind_of(node)
        if kind.startswith(_LINEAR):
            return size_of_result(node)[-1] == classes == size[axis]
        if kind.startswith(_CONVOLUTIONS):
            return len(size) > 2 and size[1] == classes and size_of_result(node) == size
        parts = [each for each, _ in node.next_functions if each is not None]
        if len(parts) != 1 or not kind.startswith((*_SAME, "View", "UnsafeView", "ReshapeAlias")):
            return False
        node = parts[0]
    return False
