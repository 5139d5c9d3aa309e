"""Loops over the folds of a cross-validation, as a script's source shows them: whether each makes a model of its own."""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from snugfit.doctor.observe.source.script_syntax import (
    Loop,
    around,
    last_name,
    names_in,
    names_set_by,
    own_nodes,
    spans,
    syntax_of,
)

Place = tuple[str, int]
_MOST_CALLERS = 8
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


def callers_of(place: Place | None, callers: Mapping[Place, Sequence[Place]]) -> list[Place]:
    """Return a line, and those that have called the functions around it, the nearest first.

    Args:
        callers: the lines that have called a function, by its first line.
    """
    places: list[Place] = [] if place is None else [place]
    for file, line in places:
        scope = around(syntax_of(file), line)[0]
        if isinstance(scope, ast.FunctionDef) and len(places) < _MOST_CALLERS:
            places += [each for each in callers.get((file, _first_line(scope)), ()) if each not in places]
    return places


def name_within(
    loop: ast.For, file: str, at: Place, name: str, callers: Mapping[Place, Sequence[Place]]
) -> str:
    """Return the name that a loop's own function has for what a line calls by a name: a parameter's is that of what its callers give."""
    for _ in range(_MOST_CALLERS):
        scope = around(syntax_of(at[0]), at[1])[0]
        if (at[0] == file and spans(loop, at[1])) or not isinstance(scope, ast.FunctionDef):
            return name
        for caller in callers.get((at[0], _first_line(scope)), ()):
            given = next(
                filter(None, (_given(call, scope, name) for call in _calls_at(caller, scope.name))), ""
            )
            if given:
                at, name = caller, given
                break
        else:
            return name
    return name


def _first_line(scope: ast.FunctionDef) -> int:
    """Return the line at which the code of a function begins, that of its first decorator."""
    return min([scope.lineno, *(each.lineno for each in scope.decorator_list)])


def _calls_at(place: Place, name: str) -> list[ast.Call]:
    """Return the calls at a line of something of this name."""
    calls = [each for each in ast.walk(syntax_of(place[0])) if isinstance(each, ast.Call)]
    return [each for each in calls if spans(each, place[1]) and last_name(each.func) == name]


def _given(call: ast.Call, scope: ast.FunctionDef, name: str) -> str:
    """Return the name that a call gives for a parameter; "" where it gives none."""
    parameters = [each.arg for each in scope.args.args]
    shift = int(parameters[:1] == ["self"])
    place = parameters.index(name) - shift if name in parameters else -1
    value = next((each.value for each in call.keywords if each.arg == name), None)
    if value is None and 0 <= place < len(call.args):
        value = call.args[place]
    return "" if value is None else last_name(value)


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
