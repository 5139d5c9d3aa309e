"""Rows that are scored and scaled by their own mean and deviation, beside those of the training that are scaled by theirs, as a script's source shows."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from snugfit.doctor.observe.source.script_syntax import last_name, own_nodes, syntax_of

_TRAINING = re.compile(r"(^|_)(train|training|trn|tr)(_|$)", re.IGNORECASE)
_SCORED = re.compile(r"(^|_)(val|valid|validate|validation|dev|test|tst|eval)(_|$)", re.IGNORECASE)
_SPREADS, _LIBRARIES = ("std", "nanstd", "var"), {"np", "numpy", "torch"}


class OwnScale(NamedTuple):
    """A line that scales rows by their own statistics, their name, and the line that does the same to those of the training."""

    line: int
    name: str
    trained: int


@lru_cache(maxsize=64)
def scaled_by_their_own(file: str) -> OwnScale | None:
    r"""Return where rows that are scored are scaled by their own statistics, as those of the training are; None where nothing shows it."""
    tree = syntax_of(file)
    functions = {each.name: each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)}
    scopes: list[ast.Module | ast.FunctionDef] = [tree, *functions.values()]
    for scope in scopes:
        scaled = list(_scaled_in(scope, functions))
        for line, name, way in scaled:
            alike = [at for at, other, same in scaled if same == way and _TRAINING.search(other)]
            if _SCORED.search(name) and not _TRAINING.search(name) and alike:
                return OwnScale(line, name, alike[0])
    return None


def _scaled_in(
    scope: ast.Module | ast.FunctionDef, functions: dict[str, ast.FunctionDef]
) -> Iterator[tuple[int, str, str]]:
    r"""Yield the statements of a scope that scale something by its own mean and deviation: the line, its name, and how, whatever its name.

    >>> text = "a_test = (a_test - a_test.mean(0)) / a_test.std(0)\nb = (b - a.mean(0)) / a.std(0)"
    >>> list(_scaled_in(ast.parse(text), {}))
    [(1, 'a_test', '(_ - _.mean(0)) / _.std(0)')]
    """
    for each in own_nodes(scope):
        if not isinstance(each, ast.Assign) or not isinstance(each.targets[0], ast.Name):
            continue
        value = each.value
        called = functions.get(last_name(value.func)) if isinstance(value, ast.Call) else None
        if called is not None and isinstance(value, ast.Call):
            given = [arg.id if isinstance(arg, ast.Name) else "" for arg in value.args]
            by_second = len(called.args.args) > 1 and _takes_spread_of(called, called.args.args[1].arg)
            if len(given) == 2 and given[0] and given[0] == given[1] and by_second:
                yield each.lineno, given[0], called.name
        elif isinstance(value, ast.BinOp) and isinstance(value.op, ast.Div):
            less = value.left
            whole = less.left if isinstance(less, ast.BinOp) and isinstance(less.op, ast.Sub) else None
            name = whole.id if isinstance(whole, ast.Name) else ""
            text = re.sub(rf"\b{name}\b", "_", ast.unparse(value)) if name else ""
            taken = [call for call in ast.walk(value) if isinstance(call, ast.Call)]
            taken = [call for call in taken if last_name(call.func) in (*_SPREADS, "mean", "nanmean")]
            kinds = {last_name(call.func) in _SPREADS for call in taken}
            alone = name and len(_names(value) - _LIBRARIES) == 1
            if alone and kinds == {True, False} and all(map(_is_over_rows, taken)):
                yield each.lineno, name, text


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _takes_spread_of(function: ast.FunctionDef, name: str) -> bool:
    """Return whether a function takes the deviation of what it is given by a name, or of its parts in a loop, and not of its first argument."""
    names = {name}
    for each in ast.walk(function):
        target = each.target if isinstance(each, ast.For | ast.comprehension) else None
        through = each.iter if isinstance(each, ast.For | ast.comprehension) else None
        if (
            isinstance(through, ast.Call)
            and last_name(through.func) == "zip"
            and isinstance(target, ast.Tuple)
        ):
            pairs = zip(target.elts, through.args, strict=False)
            names |= {part for to, of in pairs if _names(of) & names for part in _names(to)}
        elif target is not None and through is not None and _names(through) & names:
            names |= _names(target)
    calls = [
        each for each in ast.walk(function) if isinstance(each, ast.Call) and last_name(each.func) in _SPREADS
    ]
    # without an axis, those of each row that a loop goes through
    of_rows = all(_is_over_rows(each, whole=len(names) == 1) for each in calls)
    return bool(calls) and of_rows and all(_names(each) & names for each in calls)


def _is_over_rows(call: ast.Call, *, whole: bool = True) -> bool:
    """Return whether a mean or a deviation is taken over the first axis.

    Args:
        whole: also one over all axes.

    >>> texts = ("x.mean()", "x.std(0)", "np.std(x, axis=(0, 1))", "x.mean(-1, keepdim=True)", "np.mean(x, 1)", "x.std(dim=dims)")
    >>> [_is_over_rows(ast.parse(text, mode="eval").body) for text in texts]
    [True, True, True, False, False, False]
    """
    library = isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) in _LIBRARIES
    by_place = call.args[1:] if library else call.args
    by_name = [each.value for each in call.keywords if each.arg in ("dim", "axis")]
    axis = next(iter([*by_name, *by_place]), None)
    if axis is None:
        return whole
    parts = axis.elts if isinstance(axis, ast.Tuple | ast.List) else [axis]
    return any(isinstance(each, ast.Constant) and each.value == 0 for each in parts)
