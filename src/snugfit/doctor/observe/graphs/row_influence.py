"""The influence of rows on each other: gradients of one row's output with respect to what the first layers gave for all rows."""

from __future__ import annotations

import linecache
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

from snugfit.doctor.observe.graphs.graph_nodes import kind_of
from snugfit.doctor.observe.recording.internals import size_before_view

MOST_NODES, FIRSTS = 20_000, 3
LARGE = 0.5
"""A row whose own influence is less than that of the largest is not what its output is mostly made of."""
_NORMS = ("NativeBatchNorm", "CudnnBatchNorm", "MiopenBatchNorm")
_STATISTICS = ("Mean", "Var", "Std")
_MIXES = re.compile(
    r"\[[a-z_]\w*\]|view\(|reshape\(|transpose\(|permute\(|softmax\(|@|matmul\(|bmm\(|einsum\(|cat\(|stack\(|flip\(|roll\(|\.T\b|\.t\(\)|swapaxes\(|mean\(|sum\(|dim="
)


_OF_RESULT = re.compile(r"\)\.(view|reshape|transpose|permute|softmax|flip|roll|t|T)\b")
"""What does so to the result of a call in its own line."""


class Call(NamedTuple):
    """A part of a model that was called: the file and the line of the script that did, the last line of its function, the way into the graph of what it gave, and the axis of that on which the rows lie, and its shape."""

    file: str
    line: int
    end: int
    edge: GradientEdge
    axis: int
    shape: tuple[int, ...]


class Influence(NamedTuple):
    """The rows that one row's output was made of.

    Args:
        row: its place; `own` whether it depends on its own input, `most` whether on another row's at least twice as much.
        others: rows beside it on which it depends; `later` of them come after it.
        between: the number of the last of the calls after which it still does.
    """

    row: int
    own: bool
    most: bool
    others: int
    later: int
    between: int


def influence_on(output: Tensor, row: int, calls: Sequence[Call]) -> Influence | None:
    """Return which rows one row's output depends on, in what the parts of a model gave, in their order; None where it cannot be told.

    The first parts that gave a row for each row are looked at, such as queries, keys and values, and only where rows were mixed behind it all others.
    """
    rows = len(output)
    flat = output[row].reshape(-1).float()
    score = flat @ torch.linspace(1, 2, len(flat), device=flat.device)  # what cancels out in a sum does not
    alike = [each for each in calls[:FIRSTS] if each.axis == 0 and each.shape == calls[0].shape]
    firsts = [each for each in _sizes(score, alike, rows) if each is not None]
    if not firsts or not all(bool(each.isfinite().all()) for each in firsts):
        return None
    sizes = firsts[0]
    others = torch.stack(firsts).sum(0) > 0
    others[row] = False
    if not bool(others.any()):
        return Influence(row, own=True, most=False, others=0, later=0, between=0)
    behind = _sizes(score, calls, rows)
    mixed = [number for number, each in enumerate(behind) if each is not None and _is_mixed(each, row)]
    largest = float(sizes.max())
    return Influence(
        row,
        own=bool(sizes[row] > 0),
        most=float(sizes[row]) < LARGE * largest,
        others=int(others.sum()),
        later=int(others[row + 1 :].sum()),
        between=max(mixed, default=0),
    )


def _is_mixed(sizes: Tensor, row: int) -> bool:
    others = sizes > 0
    others[row] = False
    return bool(others.any())


def _sizes(score: Tensor, calls: Sequence[Call], rows: int) -> list[Tensor | None]:
    """Return the largest gradient of each row of what calls gave; None for one that has other rows."""
    try:
        gradients = torch.autograd.grad(
            score, [each.edge for each in calls], retain_graph=True, allow_unused=True
        )
    except RuntimeError:  # a value of the graph was changed in place: the script's own pass says so
        return []
    return [
        None if each is None or each.is_sparse else each.movedim(call.axis, 0).reshape(rows, -1).abs().amax(1)
        for call, each in zip(calls, gradients, strict=True)
    ]


def mixes_rows_on_purpose(node: Any, rows: int) -> tuple[bool, bool]:
    """Return whether a batch norm in training is among what an output was computed from, and whether a mean or a deviation over the first axis is."""
    todo, seen, norm, statistic = [node], set[Any](), False, False
    while todo and len(seen) < MOST_NODES:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        kind = kind_of(node)
        norm = norm or (kind in _NORMS and bool(getattr(node, "_saved_training", True)))
        if kind.startswith((*_STATISTICS, "Sum")) and not type(node).__name__.endswith("Backward0"):
            axes = getattr(node, "_saved_dim", ())
            axes = axes if isinstance(axes, tuple) else (axes,)
            statistic = statistic or (0 in axes and size_before_view(node)[:1] in ((), (rows,)))
        statistic = statistic or kind in ("Var", "Std", "VarMean", "StdMean", "Cov", "Corrcoef")
        todo += [each for each, _ in node.next_functions]
    return norm, statistic


def line_of_mixing(calls: Sequence[Call], number: int) -> tuple[str, int]:
    """Return the file and the line between a call and the next one that most looks as if it moved values between rows; that of the next call without one.

    Between calls of different functions it is the line of the second.
    """
    call = calls[number]
    behind = next(
        (
            each
            for each in calls[number + 1 :]
            if each.edge != call.edge and (each.file, each.line) != (call.file, call.line)
        ),
        None,
    )
    if behind is not None and (behind.file != call.file or behind.end != call.end or behind.line < call.line):
        last = call._replace(line=call.end)
    else:
        last = behind or call._replace(line=call.end)
    if _OF_RESULT.search(linecache.getline(call.file, call.line).partition("#")[0]):
        return call.file, call.line
    lines = [
        each
        for each in range(call.line + 1, last.line + 1)
        if _MIXES.search(linecache.getline(call.file, each).partition("#")[0])
    ]
    return call.file, lines[0] if lines else last.line
