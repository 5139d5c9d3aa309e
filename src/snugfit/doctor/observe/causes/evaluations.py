"""The line of a script at which an evaluation leaves the way of the training, where both go through one helper."""

from __future__ import annotations

import ast
import re

from snugfit.doctor.observe.source.script_syntax import around, last_name, own_nodes, spans
from snugfit.doctor.observe.source.trails import Place, Trails

MOST_CALLS = 4
_EVALUATES = re.compile(r"val|test|eval|dev|score|held", re.IGNORECASE)
_LEARNS = frozenset(["backward", "manual_backward", "train_step", "training_step"])


def line_of_evaluation(trails: Trails, at: Place, *, switches: bool = False) -> Place:
    """Return the line, up the calls of a helper that the training calls too, which belongs to the evaluation alone.

    Args:
        at: the line of the helper.
        switches: a statement on the way that switches a model to training is sought first.
    """
    for _ in range(MOST_CALLS):
        scope = around(trails.tree(at[0]), at[1])[0]
        line = _line_of_mode(scope) if switches and isinstance(scope, ast.FunctionDef) else 0
        if line:
            return at[0], line
        calls = trails.calls_of(*at)
        own = [each for each in calls if not _learns(_part_around(trails.tree(each[0]), each[1]))]
        own = own if len(own) == 1 else [each for each in own if _is_of_evaluation(trails, each)]
        if not own:
            return at
        at = own[0]
        if len(calls) > 1:
            return at
    return at


def line_of_training(trails: Trails, at: Place) -> Place:
    """Return the line that calls the function around a line to learn from what it gives; the line itself where none does."""
    own = [each for each in trails.calls_of(*at) if _learns(around(trails.tree(each[0]), each[1])[0])]
    return own[0] if own else at


def _part_around(tree: ast.Module, line: int) -> ast.AST:
    """Return the innermost loop around a line, or else its function: one function may train in a loop and test in another one."""
    scope = around(tree, line)[0]
    loops = [each for each in own_nodes(scope) if isinstance(each, ast.For | ast.While) and spans(each, line)]
    return max(loops, key=lambda each: each.lineno, default=scope)


def _line_of_mode(scope: ast.AST) -> int:
    """Return the line of a function that switches a model to training; 0 without."""
    return next(
        (
            each.lineno
            for each in own_nodes(scope)
            if isinstance(each, ast.Call)
            and isinstance(each.func, ast.Attribute)
            and each.func.attr == "train"
        ),
        0,
    )


def _learns(scope: ast.AST) -> bool:
    return any(isinstance(each, ast.Call) and last_name(each.func) in _LEARNS for each in own_nodes(scope))


def _is_of_evaluation(trails: Trails, at: Place) -> bool:
    """Return whether a line, or the function around it, says that it evaluates."""
    tree = trails.tree(at[0])
    lines = [each for each in ast.walk(tree) if isinstance(each, ast.stmt) and each.lineno == at[1]]
    name = getattr(around(tree, at[1])[0], "name", "")
    return bool(_EVALUATES.search(name)) or any(_EVALUATES.search(ast.unparse(each)) for each in lines)
