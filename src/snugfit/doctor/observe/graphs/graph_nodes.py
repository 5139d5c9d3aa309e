"""The graph of a tensor, read through views: the function that made it."""

from __future__ import annotations

import linecache
import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from snugfit.doctor.observe.recording.internals import (
    axis_of_softmax,
    factor_of_second,
    is_beside_mask,
    number_beside,
    result_of,
    size_before_view,
)

_VIEWS = (
    "Alias",
    "Clone",
    "Expand",
    "Index",
    "MaskedSelect",
    "Split",
    "Unbind",
    "View",
    "Reshape",
    "Unsafe",
    "Squeeze",
    "Unsqueeze",
    "Transpose",
    "Permute",
    "Select",
    "Slice",
    "ToCopy",
)
_WRITES = ("IndexPut", "IndexAdd", "IndexCopy", "IndexFill")
_ROWS = ("Index", "Slice")
"""Nodes that take some of the rows."""
_RESHAPES = ("View", "Reshape", "Unsafe", "Clone")
_CHANNELS_FIRST = ("Convolution", "MkldnnConvolution", "Upsample", "NativeBatchNorm", "CudnnBatchNorm")
_JOINS = ("Cat", "Stack")
_LINE = "snugfit line"
_MIXES = "snugfit mixes places"
_CONSTANT_ROWS = "snugfit constant rows"
_LOG_PROBABILITY = "snugfit logarithm of a probability"
_MOST_STEPS = 16
_BEHIND_SOFTMAX = ("NativeDropout", "Mul", "Div", "Clone", "ToCopy", "MaskedFill", "Where")
_BEFORE_SOFTMAX = ("Add", "Sub", "LeakyRelu", "Relu", "Clamp", "Tanh")
LARGEST_FACTOR = 2.0
"""A sigmoid that is multiplied by more gives bounded scores, which may be meant."""
_SUMS = ("Add", "Sub", "Rsub")
_PROBABILITIES = ("Exp", "Softmax", "LogSoftmax", "Sigmoid", "Gather")


def kind_of(node: Any) -> str:
    """Return the name of the function that a node differentiates."""
    return type(node).__name__.partition("Backward")[0]


def _through(node: Any, kinds: tuple[str, ...]) -> Any:
    """Return the first node that is of none of these kinds."""
    while (
        node is not None
        and kind_of(node).startswith(kinds)
        and not kind_of(node).startswith(_WRITES)
        and node.next_functions
    ):
        node = node.next_functions[0][0]
    return node


def maker_of(values: Tensor) -> str:
    """Return the name of the function that made values, through views and joins of its results; "" without a graph."""
    return made_by(values.grad_fn)


def made_by(node: Any) -> str:
    """Return the name of the function at a node, through views and joins; "" where there is none."""
    node = _through(node, _VIEWS)
    if node is None:
        return ""
    if not kind_of(node).startswith(_JOINS):
        return kind_of(node)
    makers = {made_by(each) for each, _ in node.next_functions}
    return makers.pop() if len(makers) == 1 else kind_of(node)


def squashed_by(node: Any) -> str:
    """Return "Softmax" or "Sigmoid" where one of them made the values at a node, through views, bounds, and numbers that they are multiplied or shifted by."""
    node, factor = _squashing(node)
    made = made_by(node)
    limit = LARGEST_FACTOR if made == "Sigmoid" else math.inf
    return made if made in ("Softmax", "Sigmoid") and factor <= limit else ""


def squashed_at(node: Any) -> str:
    """Return the line of the script that squashed the values at a node, where it calls a function for that; "" where a layer does, or it was not seen."""
    return line_that_says(_squashing(node)[0], ("softmax(", "sigmoid("))


def line_that_says(node: Any, calls: tuple[str, ...]) -> str:
    """Return the line that was kept with a node, if it calls one of these functions by its name; "" else."""
    line = line_of(_through(node, _VIEWS))
    file, _, number = line.rpartition(":")
    text = linecache.getline(file, int(number)) if number.isdigit() else ""
    return line if any(call in text for call in calls) else ""


def _squashing(node: Any) -> tuple[Any, float]:
    """Return the node before which values were but viewed, bounded, and multiplied or shifted by numbers, and the product of these; None and 0 where there is none."""
    factor = 1.0
    for _ in range(_MOST_STEPS):
        node = _through(node, _VIEWS)
        kind = kind_of(node)
        if node is None or kind in ("Softmax", "Sigmoid") or kind.startswith(_JOINS):
            break
        following = [each for each, _ in node.next_functions]
        number = number_beside(node) if kind in ("Mul", "Div") else 1.0
        if (
            not kind.startswith(("Clamp", "Mul", "Div", "Add"))
            or following[1:] not in ([], [None])
            or not number
        ):
            return None, 0.0
        factor = factor / number if kind == "Div" else factor * number
        node = following[0]
    return node, factor


def is_softmax_over_rows(scores: Tensor) -> bool:
    """Return whether scores of rows and classes are some rows of a softmax that ran over the rows."""
    node = _through(scores.grad_fn, _ROWS)
    return scores.dim() == 2 and node is not None and axis_of_softmax(node) == 0


def channels_before_reshape(scores: Tensor) -> Sequence[int]:
    """Return the size that scores had, channels first, before they were reshaped without moving an axis; () where they were not."""
    node: Any = scores.grad_fn
    size: tuple[int, ...] = ()
    while node is not None and kind_of(node).startswith(_RESHAPES) and node.next_functions:
        size = size_before_view(node) or size
        node = node.next_functions[0][0]
    return size if node is not None and kind_of(node).startswith(_CHANNELS_FIRST) else ()


def mark_line(values: Tensor, line: str) -> None:
    """Keep with values the line of the script that made them, for as long as their graph lives."""
    metadata = getattr(values.grad_fn, "metadata", None)
    if metadata is not None:
        metadata[_LINE] = line


def mark_mixing(values: Any, line: str) -> None:
    """Keep with values in which the places of a row were mixed, as attention does, the line of the script that asked for it."""
    metadata = getattr(getattr(values, "grad_fn", None), "metadata", None)
    if metadata is not None:
        metadata[_MIXES] = line


def mixing_line(node: Any) -> str:
    """Return the line that `mark_mixing` has kept with a node; "" without."""
    return str((getattr(node, "metadata", None) or {}).get(_MIXES, ""))


def line_of(node: Any) -> str:
    """Return the line that was kept with a node; "" without."""
    return str((getattr(node, "metadata", None) or {}).get(_LINE, ""))


def mark_log_probabilities(values: Tensor) -> None:
    """Mark what a distribution gave as the logarithm of a probability, for as long as its graph lives."""
    metadata = getattr(values.grad_fn, "metadata", None)
    if metadata is not None:
        metadata[_LOG_PROBABILITY] = True


def is_log_probability(node: Any) -> bool:
    """Return whether `mark_log_probabilities` has marked what a node gave."""
    return _LOG_PROBABILITY in (getattr(node, "metadata", None) or {})


def is_of_log_probabilities(values: Tensor) -> bool:
    """Return whether values are logarithms of probabilities, or ratios of them, through views, sums and signs."""
    return is_from_log_probabilities(values.grad_fn)


def is_from_log_probabilities(node: Any) -> bool:
    """Return whether a node gave logarithms of probabilities, or ratios of them, through views, sums and signs."""
    gathered = False
    for _ in range(_MOST_STEPS):
        if node is None or _LOG_PROBABILITY in (getattr(node, "metadata", None) or {}):
            break
        if gathered and kind_of(node) == "LogSoftmax":
            return True
        gathered = gathered or kind_of(node).startswith("Gather")
        if (
            not kind_of(node).startswith((*_VIEWS, *_JOINS, "Gather", "Neg", "Exp", "Sub", "Sum", "Mul"))
            or not node.next_functions
        ):
            return False
        node = next((each for each, _ in node.next_functions if each is not None), None)
    return node is not None and _LOG_PROBABILITY in (getattr(node, "metadata", None) or {})


def masked_softmax(node: Any) -> Tensor | None:
    """Return what a softmax gave, of which some values were set to nothing at a node, through views; None where there is none."""
    node = _through(node, _VIEWS)
    if node is None or not kind_of(node).startswith(("MaskedFill", "Where", "Mul")):
        return None
    if kind_of(node) == "Mul" and not is_beside_mask(node):
        return None
    softmaxes = [_through(each, _VIEWS) for each, _ in node.next_functions if made_by(each) == "Softmax"]
    return result_of(softmaxes[0]) if softmaxes else None


def softmax_of_products(node: Any) -> Any:
    """Return the softmax that gave the weights at a node, through dropout and masks, of scores that are products or sums of two things that learn.

    None where there is none: what a layer gives as it is may be shares of any kind.
    """
    node = _past(node, _BEHIND_SOFTMAX)
    if kind_of(node) != "Softmax":
        return None
    below = _past(node.next_functions[0][0], (*_BEHIND_SOFTMAX, *_VIEWS, *_BEFORE_SOFTMAX))
    parts = [] if below is None else [each for each, _ in below.next_functions]
    product = kind_of(below).startswith(("Bmm", "Mm", "Add")) and len(parts) == 2 and None not in parts
    return node if product else None


def _past(node: Any, kinds: tuple[str, ...]) -> Any:
    """Return the first node of none of these kinds, or of several parts that have a graph."""
    for _ in range(_MOST_STEPS):
        parts = [] if node is None else [each for each, _ in node.next_functions if each is not None]
        if len(parts) != 1 or not kind_of(node).startswith(kinds):
            break
        node = parts[0]
    return node


def is_sum_of_all(number: Tensor) -> bool:
    """Return whether a number is the sum or the mean over all of a tensor, multiplied or not."""
    node = _through(number.grad_fn, ("Neg", "Mul", "Div"))
    return node is not None and type(node).__name__.startswith(("SumBackward0", "MeanBackward0"))


def is_difference(values: Tensor) -> bool:
    """Return whether values are a constant less something with a graph, as return - value is, through views and a scale."""
    node = _through(values.grad_fn, (*_VIEWS, *_JOINS, "Div"))
    for _ in range(2):  # less its own mean, as what is normalised is
        parts = [] if node is None else [each for each, _ in node.next_functions]
        centred = len(parts) == 2 and kind_of(node) == "Sub" and None not in parts
        if not centred or not kind_of(parts[1]).startswith("Mean") or parts[0] not in _near(parts[1]):
            break
        node = _through(parts[0], (*_VIEWS, *_JOINS, "Div"))
    if node is None or not kind_of(node).startswith(("Sub", "Rsub")):
        return False
    parts = [each for each, _ in node.next_functions]
    made = {made_by(each) for each in parts if each is not None}
    # one minus a probability weighs a loss, as the focal one does
    return (None in parts or len(parts) == 1) and made.isdisjoint(_PROBABILITIES)


def _near(node: Any) -> list[Any]:
    """Return the nodes from which one was computed, through one more."""
    first = [each for each, _ in node.next_functions if each is not None]
    return [*first, *(each for part in first for each, _ in part.next_functions)]


def mark_constant_rows(total: Tensor) -> None:
    """Mark a sum of something with a graph and of rows without one, for as long as its graph lives."""
    metadata = getattr(total.grad_fn, "metadata", None)
    if metadata is not None:
        metadata[_CONSTANT_ROWS] = True


def has_constant_rows(values: Tensor) -> bool:
    """Return whether values are such a sum, through views."""
    node = _through(values.grad_fn, _VIEWS)
    return node is not None and _CONSTANT_ROWS in (getattr(node, "metadata", None) or {})


def leaves_of(values: Tensor, most: int = 2000) -> dict[int, Tensor]:
    """Return the leaves of the graph of values, by id."""
    return leaves_below(values.grad_fn, most)


def leaves_below(node: Any, most: int = 2000) -> dict[int, Tensor]:
    """Return the leaves of the graph that ends in a node, by id."""
    todo, seen, leaves = [node], set[Any](), dict[int, Tensor]()
    while todo and len(seen) < most:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, Tensor):
            leaves[id(leaf)] = leaf
        todo += [each for each, _ in node.next_functions]
    return leaves


def is_bootstrapped(targets: Tensor) -> bool:
    """Return whether targets are a constant plus a multiple of something with a graph, as reward + discount * value is."""
    node = _through(targets.grad_fn, _VIEWS)
    if node is not None and kind_of(node) == "Where":  # of the last step of an episode, and of others
        below = [_through(each, _VIEWS) for each, _ in node.next_functions if each is not None]
        node = below[0] if len(below) == 1 else node
    if node is None or not kind_of(node).startswith(_SUMS):
        return False
    parts = [each for each, _ in node.next_functions]
    scaled = factor_of_second(node) not in (1.0, -1.0)  # torch.add(rewards, values, alpha=discount)
    return None in parts and (scaled or any(kind_of(each) == "Mul" for each in parts if each is not None))
