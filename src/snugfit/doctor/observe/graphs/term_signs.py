"""Parts of a loss whose direction says whether it is learned the right way round: likelihoods, overlaps, and the spread of what is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor
from torch.autograd.graph import GradientEdge

from snugfit.doctor.observe.graphs.graph_nodes import is_log_probability, kind_of, line_of
from snugfit.doctor.observe.graphs.loss_graph import Term, scores_summed, sums_in
from snugfit.doctor.observe.recording.internals import (
    averages_rows,
    exponent_of,
    number_beside,
    saved,
    size_of_result,
)

MOST_NODES, MOST_STEPS, MOST_EDGES = 2000, 12, 64
_TAKEN = (
    "Gather",
    "Index",
    "Select",
    "Squeeze",
    "Unsqueeze",
    "View",
    "Reshape",
    "Mean",
    "Sum",
    "Stack",
    "Cat",
    "Unsafe",
    "Slice",
)
_NUMBERS = ("Mul", "Div", "View", "Reshape", "Expand", "Clone", "ToCopy", "Slice", "Split", "Select")
_PASSED = ("Mean", "Sum", "Neg", "Mul", "Div", "View", "Reshape", "Squeeze", "ToCopy", "Expand", "MaskedFill")
_SUMS = ("Add", "Sub", "Rsub", "Neg", "Mul", "Div", "View")
_ADDED_UP = (
    *_SUMS,
    "Sum",
    "Mean",
    "Reshape",
    "Squeeze",
    "Unsqueeze",
    "Expand",
    "ToCopy",
    "Stack",
    "Cat",
    "Select",
    "Unsafe",
)
"""What a value goes through on its way into a sum of numbers; a root or a bound is none of it."""


_LOSSES = (
    "NllLoss",
    "MseLoss",
    "L1Loss",
    "SmoothL1Loss",
    "HuberLoss",
    "BinaryCrossEntropy",
    "CtcLoss",
)


class Contradiction(NamedTuple):
    """Something that a loss reads in two ways of which one must be wrong: the line that reads it first, "" where it is not known, and its finding."""

    at: str
    pitfall: str
    what: str
    fix: str


def likelihoods_below(terms: Sequence[Term]) -> list[GradientEdge]:
    """Return the logarithms of probabilities of which all of a loss is made, at picked places and multiplied by constants alone; none where something else is in it."""
    edges: list[GradientEdge] = []
    for term in terms:
        todo, steps, taken = [(term.node, False)], 0, False
        while todo:
            node, taken = todo.pop()
            steps += 1
            if node is None or steps > MOST_STEPS + MOST_EDGES or len(edges) > MOST_EDGES:
                return []
            kind, parts = kind_of(node), [each for each, _ in node.next_functions if each is not None]
            if is_log_probability(node) or (kind == "LogSoftmax" and taken):
                edges.append(GradientEdge(node, 0))
            elif kind.startswith(_TAKEN) and parts:
                picked = taken or kind.startswith(("Gather", "Index"))
                todo += [(each, picked) for each in parts]
            elif kind in ("Mul", "Div", "Neg") and len(parts) == 1 and not _is_below_zero(node):
                todo.append((parts[0], taken or kind == "Mul"))
            else:
                return []
    return edges


def takes_losses_for_gains(value: Any) -> bool:
    """Return whether a sum is multiplied by a number below 0 that is more than a sign, as returns of an agent may be."""
    return any(_is_below_zero(each) for each in sums_in(value) if kind_of(each) in ("Mul", "Div"))


def _is_below_zero(node: Any) -> bool:
    """Return whether a product or a quotient has a constant with something below 0; a minus may be written as -1.

    >>> import torch
    >>> chance = torch.ones(2, requires_grad=True)
    >>> factors = -1.0, 2.0, -2.5, torch.tensor([1.0, -3.0])
    >>> [_is_below_zero((chance * each).grad_fn) for each in factors]
    [False, False, True, True]
    """
    parts = [each for each, _ in node.next_functions]
    other = saved(node, "_saved_self" if parts[0] is None else "_saved_other")
    if other is not None and other.numel() > 1 and not other.is_complex():
        return bool((other < 0).any())
    return number_beside(node) < 0 and number_beside(node) != -1


def losses_below(terms: Sequence[Term]) -> bool | None:
    """Return whether all of a value is losses of torch that are taken off; False where one is added, None where it has something else in it."""
    ways = []
    for term in terms:
        node, sign = term.node, term.factor
        for _ in range(MOST_STEPS):
            if node is None or kind_of(node).startswith(_LOSSES):
                break
            kind = kind_of(node)
            parts = [each for each, _ in node.next_functions if each is not None]
            if not kind.startswith(_PASSED) or len(parts) != 1:
                break
            if kind == "Neg":
                sign = -sign
            elif kind in ("Mul", "Div"):
                number = number_beside(node)
                if not number:
                    break
                sign *= number
            node = parts[0]
        if kind_of(node) == "LogSoftmax":  # of the labels that are smoothed
            continue
        if node is None or not kind_of(node).startswith(_LOSSES):
            return None
        ways.append(sign < 0)
    return all(ways) if ways else None


def overlap_over_sum(value: Tensor) -> GradientEdge | None:
    """Return the overlap of probabilities with a mask that a loss divides by a sum of them, as the Dice loss does; None without."""
    for node in nodes_below(value.grad_fn, MOST_EDGES):
        parts = [each for each, _ in node.next_functions]
        if kind_of(node) == "Div" and len(parts) == 2 and None not in parts:
            masked, summed = (
                set(scores_summed(part, masked=way)) for part, way in zip(parts, (True, False), strict=True)
            )
            if masked & summed:
                return GradientEdge(parts[0], 0)
    return None


def read_as_both(node: Any) -> Contradiction | None:
    """Return what contradicts itself in the divergence of a normal distribution that is drawn from: its spread, read in two ways; None without.

    The divergence has the logarithm `s` of the variance beside its exponential, or that of the deviation beside the exponential of twice it; what
    is drawn is noise times the deviation.
    """
    nodes = list(nodes_below(node))
    users = users_of(nodes)
    drawn: list[tuple[Any, Any, float]] = []
    diverging: list[tuple[Any, float]] = []
    for each in nodes:
        if kind_of(each) != "Exp":
            continue
        base, factor = base_of(each.next_functions[0][0])
        for user in users.get(each, []):
            if kind_of(user) == "Mul" and is_noise(user):
                drawn.append((each, base, factor))
            elif kind_of(user).startswith(("Add", "Sub", "Rsub")) and _is_summed_with(user, base, users):
                diverging.append((base, factor))
    for exponential, base, factor in drawn:
        for other, multiple in diverging:
            if other is base and factor and abs(multiple / factor - 1) < 1e-3:
                what = (
                    f"The deviation that noise is multiplied with and the variance in the divergence are both exp({factor:g} * s) of the same output: "
                    "the first is the square root of the second."
                )
                fix = "std = torch.exp(0.5 * logvar)   # where the divergence has logvar.exp()"
                return Contradiction(line_of(exponential), "read_two_ways", what, fix)
    return None


def squares_of_drawn(node: Any) -> list[GradientEdge]:
    """Return the squares of the means of what is drawn, to which noise times a deviation is added, as the divergence from a normal distribution has them.

    A mean whose square makes nothing but a sum of numbers is meant: squares of what is drawn, or of errors, are none, nor is the spread of the
    means over the rows, which a loss may hold up.
    """
    nodes = list(nodes_below(node))
    users = users_of(nodes)
    means = set()
    for each in nodes:
        parts = [part for part, _ in each.next_functions]
        if not kind_of(each).startswith("Add") or len(parts) != 2 or None in parts:
            continue
        for noise, mean in (parts, parts[::-1]):
            if kind_of(noise) == "Mul" and is_noise(noise) and size_of_result(mean) == size_of_result(noise):
                means.add(base_of(mean)[0])
    means -= {base_of(each.next_functions[0][0])[0] for each in nodes if averages_rows(each)}
    return [
        GradientEdge(each, 0)
        for each in nodes
        if squared_by(each) is not None
        and base_of(squared_by(each))[0] in means
        and all(kind_of(user).startswith(_ADDED_UP) for user in _above(each, users))
    ]


def _above(node: Any, users: dict[Any, list[Any]]) -> set[Any]:
    """Return all nodes that are computed of one."""
    todo, seen = [node], set[Any]()
    while todo:
        for user in users.get(todo.pop(), []):
            if user not in seen:
                seen.add(user)
                todo.append(user)
    return seen


def squared_by(node: Any) -> Any:
    """Return what a node is the square of, with a constant that is taken off it or not; None where it is no square."""
    parts = [part for part, _ in node.next_functions]
    if (kind_of(node) == "Pow" and exponent_of(node) == 2) or (
        kind_of(node) == "Mul" and len(parts) == 2 and parts[0] is parts[1] and parts[0] is not None
    ):
        base = parts[0]
    else:
        return None
    for _ in range(MOST_STEPS):
        below = [part for part, _ in base.next_functions if part is not None]
        if len(below) != 1 or not kind_of(base).startswith(("Sub", "Add", "Div")):
            break
        base = below[0]
    return base


def users_of(nodes: Sequence[Any]) -> dict[Any, list[Any]]:
    """Return for each node those that are computed of it."""
    users: dict[Any, list[Any]] = {}
    for each in nodes:
        for part, _ in each.next_functions:
            users.setdefault(part, []).append(each)
    return users


def nodes_below(node: Any, most: int = MOST_NODES) -> list[Any]:
    """Return the nodes of a graph from its end, the nearest first."""
    order, todo, seen = list[Any](), [node], set[Any]()
    while todo and len(order) < most:
        node = todo.pop(0)
        if node is None or node in seen:
            continue
        seen.add(node)
        order.append(node)
        todo += [each for each, _ in node.next_functions]
    return order


def base_of(node: Any) -> tuple[Any, float]:
    """Return what a value is a multiple of, through views, and the number by which it is."""
    factor = 1.0
    for _ in range(MOST_STEPS):
        parts = [] if node is None else [each for each, _ in node.next_functions if each is not None]
        if len(parts) != 1 or not kind_of(node).startswith(_NUMBERS):
            break
        if kind_of(node) in ("Mul", "Div"):
            number = number_beside(node)
            if not number:
                break
            factor = factor * number if kind_of(node) == "Mul" else factor / number
        node = parts[0]
    return node, factor


def is_noise(product: Any) -> bool:
    """Return whether the other factor of a product is a constant of many numbers of both signs, as what is drawn is."""
    parts = [each for each, _ in product.next_functions]
    if len(parts) != 2 or None not in parts:
        return False
    other = saved(product, "_saved_self" if parts[0] is None else "_saved_other")
    if other is None or other.numel() < 2 or not other.is_floating_point():
        return False
    return bool((other > 0).any()) and bool((other < 0).any())


def _is_summed_with(node: Any, base: Any, users: dict[Any, list[Any]]) -> bool:
    """Return whether what a sum is a part of has a multiple of a base as another part."""
    top = node
    for _ in range(MOST_STEPS):
        above = [each for each in users.get(top, []) if kind_of(each).startswith(("Add", "Sub", "Rsub"))]
        if not above:
            break
        top = above[0]
    todo = [top]
    for _ in range(4 * MOST_STEPS):
        if not todo:
            return False
        each = todo.pop()
        if each is None or kind_of(each) == "Exp":
            continue
        if base_of(each)[0] is base:
            return True
        if kind_of(each).startswith(_SUMS):
            todo += [part for part, _ in each.next_functions]
    return False
