"""Loops over the folds of a cross-validation, as a script's source shows them: whether each makes a model of its own."""

from __future__ import annotations

import ast
import re
from typing import NamedTuple

from snugfit.doctor.observe.source.script_syntax import (
    Loop,
    around,
    last_name,
    names_in,
    names_set_by,
    own_nodes,
    syntax_of,
)

_FOLDS = re.compile("fold", re.IGNORECASE)
_ANEW = frozenset(["load_state_dict", "reset_parameters", "apply", "init_weights", "deepcopy", "reset"])
"""What gives a model other weights than those that it has."""


class FoldModel(NamedTuple):
    """The model of a loop over folds: the line that makes it before the loop, 0 where none is known, and whether each fold makes it anew or sets it back."""

    line: int
    anew: bool


def loop_of_folds(file: str, line: int) -> ast.For | None:
    """Return the loop over folds around a line; None without."""
    loops = around(syntax_of(file), line)[1]
    return next((e for e in loops if isinstance(e, ast.For) and _is_over_folds(e)), None)


def model_of_folds(file: str, line: int, name: str) -> FoldModel | None:
    """Return what the loop over folds around a line does with the model of this name; None without such a loop."""
    loop = loop_of_folds(file, line)
    if loop is None:
        return None
    made = [
        each.lineno
        for each in own_nodes(around(syntax_of(file), line)[0])
        if isinstance(each, ast.Assign) and name in names_set_by(each) and each.lineno < loop.lineno
    ]
    return FoldModel(max(made, default=0), _is_made_in(loop, name))


def _is_over_folds(loop: ast.For) -> bool:
    """Return whether a loop says that it goes over folds, or over the splits that an object makes of rows, as scikit-learn's do."""
    calls = [each for each in ast.walk(loop.iter) if isinstance(each, ast.Call)]
    splits = any(
        last_name(each.func) == "split" and each.args and not isinstance(each.args[0], ast.Constant)
        for each in calls
    )
    return splits or bool(_FOLDS.search(f"{ast.unparse(loop.target)} in {ast.unparse(loop.iter)}"))


def _is_made_in(loop: Loop, name: str) -> bool:
    """Return whether a loop sets a name, or calls something by which what has this name gets other weights."""
    for each in ast.walk(loop):
        if isinstance(each, ast.Assign) and name in names_set_by(each):
            return True
        called = last_name(each.func) if isinstance(each, ast.Call) and name in names_in(each) else ""
        if called in _ANEW or re.search(r"(?i)reset|init|fresh", called):
            return True
    return False
