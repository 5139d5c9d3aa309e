"""The terms of a loss, read from the graph of their sum: which are means over the rows, which sums, which overlaps."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import Tensor

from snugfit.doctor.observe.graphs.graph_nodes import kind_of, made_by
from snugfit.doctor.observe.recording.internals import (
    averages,
    factor_of_second,
    is_beside_mask,
    is_used_up,
    mean_of_constant,
    number_beside,
    size_before_view,
    size_of_scores,
    sums_up,
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
MOST_SUMS = 64
MOST_OVERLAP = 200
_RAW = ("Convolution", "MkldnnConvolution", "SlowConv", "Addmm", "Mm", "Bmm", "MkldnnLinear", "Upsample")
"""What makes scores of any size."""
COSINE = "snugfit cosine"
"""Kept with the node of a cosine: the nodes of the two sides, and the line."""
_OF_WEIGHTS = (
    "Abs",
    "Pow",
    "Mul",
    "Sum",
    "Mean",
    "Neg",
    "Div",
    "Add",
    "Sqrt",
    "LinalgVectorNorm",
    "Norm",
    "View",
    "Stack",
)
LEAST_FACTOR = 0.25
"""A sum that is multiplied by less has got its weight on purpose."""


class Term(NamedTuple):
    """A term of a sum: the node that made it, the number by which it is multiplied, and those by which it was divided for that."""

    node: Any
    factor: float
    divisors: tuple[float, ...] = ()


def sum_beside_mean(loss: Tensor, rows: int, scale: float = 1.0) -> Term | None:
    """Return a term that is the sum over all rows, where another one is a mean over what was computed from the same; None without.

    Args:
        rows: of the batch.
        scale: that of the loss, which says nothing of its terms.
    """
    if rows < LEAST_ROWS or loss.numel() != 1:
        return None
    terms = terms_of(loss.grad_fn, 1 / scale)
    if all(rows in each.divisors for each in terms):  # the whole is divided by the rows, a mean in it again
        terms = [_multiplied(each, rows) for each in terms]
    means = [
        each.node
        for each in terms
        if _is_mean(each.node) or (_summed_rows(each.node) == rows and rows in each.divisors)
    ]
    for term in terms:
        if (
            _summed_rows(term.node) == rows and rows not in term.divisors
        ):  # else a mean over the rows, by hand
            factor, below = term.factor * _weight_of_rows(term.node), _below(term.node)
            if abs(factor) >= LEAST_FACTOR and any(below & _below(mean) for mean in means):
                return term._replace(factor=factor)
    return None


def _multiplied(term: Term, rows: int) -> Term:
    """Return a term that was divided by the rows as it was before."""
    divisors = list(term.divisors)
    divisors.remove(rows)
    return term._replace(factor=term.factor * rows, divisors=tuple(divisors))


def terms_of(node: Any, factor: float = 1.0) -> list[Term]:
    """Return the terms of which a node is the sum, each with the number by which it is multiplied."""
    return list(_terms(Term(node, factor), 0))


def addends_of(node: Any) -> list[Any]:
    """Return the nodes that are added up in a value, through means, sums, signs and what they are multiplied by that has no graph."""
    todo, addends = [node], list[Any]()
    while todo and len(addends) < MOST_SUMS:
        node = todo.pop()
        if node is None:
            continue
        following = [each for each, _ in node.next_functions]
        graphs = [each for each in following if each is not None]
        kind = kind_of(node)
        weighed = kind in ("Mul", "Div") and len(graphs) == 1 and graphs[0] is following[0]
        if kind in ("Add", "Sub", "Neg", "Mean", "Sum") or weighed or kind.startswith(_PASSED):
            todo += graphs
        else:
            addends.append(node)
    return addends


def is_passed_over(node: Any) -> bool:
    """Return whether nothing has differentiated a value, while what it was computed of has been, for another one, and can be no more.

    >>> import torch
    >>> hidden = torch.ones(2, requires_grad=True).exp()
    >>> one, other = hidden.square().mean(), (hidden - 1).abs().mean()
    >>> is_passed_over(other.grad_fn)
    False
    >>> one.backward()
    >>> is_passed_over(one.grad_fn), is_passed_over(other.grad_fn)
    (False, True)
    """
    todo, seen, first = [node], set[Any](), False
    while todo and len(seen) < MOST_OVERLAP:
        node = todo.pop(0)
        if node is None or node in seen:
            continue
        seen.add(node)
        used = is_used_up(node)
        if used:
            return first
        first = first or used is not None
        todo += [each for each, _ in node.next_functions]
    return False


def sums_in(node: Any) -> Iterator[Any]:
    """Yield the sums and products of which a value is made, near its end: through signs and numbers that it is multiplied by."""
    todo = [node]
    for _ in range(MOST_SUMS):
        if not todo:
            return
        node = todo.pop()
        if node is not None and kind_of(node).startswith(("Add", "Sub", "Neg", "Mul", "Div")):
            todo += [each for each, _ in node.next_functions]
            yield node


def summed_term(terms: list[Term], rows: int) -> Term | None:
    """Return the term of a loss that is the sum over all rows, where nothing else is computed from them: others are penalties of the weights."""
    if rows < LEAST_ROWS:
        return None
    learned = [each for each in terms if each.node is None or not is_penalty(each.node)]
    if len(learned) != 1 or learned[0].node is None or _summed_rows(learned[0].node) != rows:
        return None
    return learned[0]._replace(factor=learned[0].factor * _weight_of_rows(learned[0].node))


def is_penalty(node: Any) -> bool:
    """Return whether a term is computed of weights alone, as a norm of them is."""
    kinds = {kind_of(each) for each in (node, *_below(node))}
    return all(kind.startswith(_OF_WEIGHTS) for kind in kinds)


def share_of_mean(terms: list[Term], rows: int) -> float | None:
    """Return the largest number by which a mean over the rows is multiplied in a loss; None where no term of it is a mean."""
    shares = []
    for node, factor, divisors in terms:
        if node is not None and _is_mean(node):
            shares.append(abs(factor))
        elif node is not None and _summed_rows(node) == rows and rows in divisors:
            shares.append(abs(factor) * rows)
    return max(shares, default=None)


def nested_mean(terms: list[Term]) -> bool:
    """Return whether a term is less the mean of a sum of raw scores of which one part is one number already, the mean of others.

    Behind a difference, or without the sign, the mean of means is what the parts say; and other numbers may be added to each row.
    """
    for node, factor, *_ in terms:
        below = node.next_functions[0][0] if type(node).__name__ == "MeanBackward0" else None
        if factor >= 0 or below is None or kind_of(below) != "Add" or factor_of_second(below) <= 0:
            continue
        parts = [each for each, _ in below.next_functions]
        means = [each for each in parts if type(each).__name__ == "MeanBackward0"]
        if None in parts or len(means) != 1:
            continue
        makers = {made_by(each.next_functions[0][0] if each in means else each) for each in parts}
        if len(makers) == 1 and makers.pop().startswith(_RAW):
            return True
    return False


def pulled_together(terms: list[Term]) -> str:
    """Return the line of cosines that are all that a loss has, where each target has a graph and another's prediction is computed of it; "" else.

    Both sides then go to one constant, which is all that the loss asks for. With other terms, such as a variance, they do not.
    """
    pairs = []
    for node, factor, _ in terms:
        below = node.next_functions[0][0] if type(node).__name__ == "MeanBackward0" else None
        pair = (getattr(below, "metadata", None) or {}).get(COSINE)
        if factor >= 0 or pair is None:
            return ""
        pairs.append(pair)
    apart = [(one, other) for one in pairs for other in pairs if one is not other]
    crossed = [target in _below(prediction) for (prediction, _, _), (_, target, _) in apart]
    return str(pairs[0][2]) if len(pairs) == 2 and all(crossed) else ""


def raw_overlap(loss: Tensor) -> str:
    """Return what made raw scores of which the overlap with a mask is divided by their sum, as the Dice loss does; "" where there are none."""
    todo, seen = [loss.grad_fn], set[Any]()
    while todo and len(seen) < MOST_OVERLAP:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        parts = [each for each, _ in node.next_functions]
        if kind_of(node) == "Div" and len(parts) == 2 and None not in parts:
            masked, summed = (
                set(scores_summed(part, masked=way)) for part, way in zip(parts, (True, False), strict=True)
            )
            for scores in masked & summed:
                if (maker := made_by(scores)).startswith(_RAW):
                    return maker
        todo += parts
    return ""


def scores_summed(node: Any, *, masked: bool) -> Iterator[Any]:
    """Yield what is summed up below a node, through sums and numbers: scores as they are, or those that a mask is multiplied with."""
    todo = [node]
    for _ in range(MOST_SUMS):
        if not todo:
            return
        node = todo.pop()
        if node is None:
            continue
        parts = [each for each, _ in node.next_functions]
        if not kind_of(node).startswith("Sum"):
            todo += parts if kind_of(node).startswith(("Add", "Mul", "Div", "Neg", *_PASSED)) else []
        elif not masked:
            yield parts[0]
        elif parts[0] is not None and kind_of(parts[0]) == "Mul" and is_beside_mask(parts[0]):
            yield from (each for each, _ in parts[0].next_functions if each is not None)


def _terms(term: Term, depth: int) -> Iterator[Term]:
    node = term.node
    kind = kind_of(node) if node is not None else ""
    following = [] if node is None else [each for each, _ in node.next_functions]
    if node is None or depth > 16:
        return
    if kind in ("Add", "Sub") and len(following) == 2:
        alpha = factor_of_second(node) * (1 if kind == "Add" else -1)
        yield from _terms(term._replace(node=following[0]), depth + 1)
        yield from _terms(term._replace(node=following[1], factor=term.factor * alpha), depth + 1)
    elif kind == "Neg":
        yield from _terms(term._replace(node=following[0], factor=-term.factor), depth + 1)
    elif kind == "Mul" and following[0] is None and len(following) == 2 and number_beside(node):
        yield from _terms(
            term._replace(node=following[1], factor=term.factor * number_beside(node)), depth + 1
        )
    elif kind in ("Mul", "Div") and following[0] is not None and following[1:] in ([], [None]):
        number = number_beside(node)
        if number and kind == "Mul":
            yield from _terms(term._replace(node=following[0], factor=term.factor * number), depth + 1)
        elif number:
            divided = Term(following[0], term.factor / number, (*term.divisors, number))
            yield from _terms(divided, depth + 1)
    elif kind.startswith(_PASSED):
        yield from _terms(term._replace(node=following[0]), depth + 1)
    else:
        yield term


def _is_mean(node: Any) -> bool:
    return type(node).__name__ == "MeanBackward0" or (kind_of(node).startswith(_LOSSES) and averages(node))


def _summed_rows(node: Any) -> int:
    """Return the size of the first axis of what a node sums up as a whole; 0 where it does not."""
    size = size_before_view(node) if type(node).__name__ == "SumBackward0" else ()
    if kind_of(node).startswith(_LOSSES) and sums_up(node):
        size = size_of_scores(node)
    return size[0] if size else 0


def _weight_of_rows(node: Any) -> float:
    """Return the mean of what a sum multiplies its values by: one over the rows, where weights that come to 1 make it a mean."""
    if kind_of(node).startswith(_LOSSES):
        return 1.0
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
