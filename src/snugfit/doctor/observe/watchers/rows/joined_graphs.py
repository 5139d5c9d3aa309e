"""Graphs that are joined into one for a batch, whose edges must count the nodes of those before them."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from torch import Tensor

from snugfit.doctor.observe.recording.own_source import own_files
from snugfit.doctor.observe.recording.script_frames import shown
from snugfit.doctor.observe.source.script_syntax import syntax_of

LEAST_GRAPHS = 4


def edges_within_the_first(inputs: Sequence[Tensor]) -> tuple[int, int, int, int] | None:
    """Return how many edges, graphs and nodes a batch has, and the last node that has an edge, where that is one of the first graphs; None else.

    Among the inputs are the nodes, as numbers of their kinds or as vectors, the edges as two rows or two columns of their numbers, and the graph that each node belongs to.
    """
    numbers = [
        each for each in inputs if not each.is_floating_point() and each.numel() and each.dtype.itemsize > 1
    ]
    edges = [each for each in numbers if each.dim() == 2 and 2 in each.shape]
    for owners in (each for each in numbers if each.dim() == 1):
        graphs = int(owners[-1]) + 1
        steps = owners[1:] - owners[:-1]
        in_order = int(owners[0]) == 0 and bool(((steps == 0) | (steps == 1)).all())
        if not in_order or graphs < LEAST_GRAPHS or len(owners) < 2 * graphs:
            continue
        others = (each for each in inputs if each.dim() and not any(each is one for one in (owners, *edges)))
        if not any(len(each) == len(owners) for each in others):  # the nodes themselves
            continue
        largest = int(owners.bincount().max())
        for each in edges:
            last = int(each.max())
            if last < largest and each.numel() // 2 >= len(owners) // 2:
                return each.numel() // 2, graphs, len(owners), last
    return None


def line_that_joins() -> str:
    """Return file:line where the script's source puts the edges of a graph into a list, or joins them, without a number added to them; "" without.

    A list that is called for the edges comes before others: into those of a data set, graphs are put whole.
    """
    lines = []
    for file in own_files():
        for call in (each for each in ast.walk(syntax_of(file)) if isinstance(each, ast.Call)):
            name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
            if name in ("append", "extend", "cat", "concatenate", "hstack") and call.args:
                given = ast.unparse(call.args[0])
                loops = name == "append" or isinstance(call.args[0], ast.ListComp)
                adds = name in ("append", "extend")
                into_edges = adds and "edge" in ast.unparse(call.func).rpartition(".")[0]
                if ((loops and "edge" in given) or into_edges) and "+" not in given:
                    lines.append((adds and not into_edges, f"{shown(file)}:{call.lineno}"))
    return min(lines, key=lambda each: each[0])[1] if lines else ""
