"""Weights that are chosen by the score of the test, though a validation is scored beside it: read in the script's source, by what the two are called."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from snugfit.doctor.observe.source.best_directions import BEST
from snugfit.doctor.observe.source.script_syntax import Loop, last_name, own_nodes, syntax_of

_TEST = {"test", "tst", "testing"}
_VALIDATION = {"val", "vali", "valid", "validate", "validation", "dev"}
_CHOOSES = re.compile(r"sched|plateau|early|stopp|patience", re.IGNORECASE)
_Function = ast.FunctionDef | ast.AsyncFunctionDef


class Choice(NamedTuple):
    """A line that chooses by a score of the test, the name of that score, and the line that scores a validation in the same loop."""

    line: int
    name: str
    validated: int


@lru_cache(maxsize=64)
def selection_by_test(file: str) -> Choice | None:
    r"""Return where a loop over epochs keeps its best, waits or stops by the score of the test while it scores a validation too; None where nothing shows it.

    Where anything in that loop is chosen by the validation, the test's is only told.
    """
    tree = syntax_of(file)
    for scope in (each for each in ast.walk(tree) if isinstance(each, _Function | ast.Module)):
        for loop in (each for each in own_nodes(scope) if isinstance(each, ast.For | ast.While)):
            choice = _choice_in(loop)
            if choice is not None:
                return choice
    return None


def _choice_in(loop: Loop) -> Choice | None:
    r"""Return what a loop chooses by the test.

    >>> text = "for e in r:\n v = score(val_rows)\n t = score(test_rows)\n if {0} > best:\n  best = {0}"
    >>> _choice_in(ast.parse(text.format("t")).body[0])
    Choice(line=4, name='t', validated=2)
    >>> _choice_in(ast.parse(text.format("v")).body[0])
    """
    sides = {
        name: (side, each.lineno)
        for each in ast.walk(loop)
        if isinstance(each, ast.Assign) and isinstance(each.value, ast.Call)
        for name, side in _sides_set_by(each)
    }
    validated = [line for side, line in sides.values() if side is _VALIDATION]
    choices = []
    for line, score in _choosers(loop):
        words = {each.id for each in ast.walk(score) if isinstance(each, ast.Name)}
        own = _side(ast.unparse(score))
        known = [own] if own else [sides[name][0] for name in words if name in sides] or [None]
        choices.append((line, ast.unparse(score), _TEST if all(each is _TEST for each in known) else None))
    if not validated or not choices or any(side is not _TEST for _, _, side in choices):
        return None
    line, name, _ = choices[0]
    return Choice(line, name, validated[0])


def _sides_set_by(statement: ast.Assign) -> Iterator[tuple[str, set[str] | None]]:
    """Yield the names that a call's result is given, and whether it is of the test or of a validation, by what the call is given, else by their names."""
    for target in statement.targets:
        parts = target.elts if isinstance(target, ast.Tuple) else [target]
        for name in (last_name(each) for each in parts):
            if name and isinstance(statement.value, ast.Call):
                yield name, _side_of_call(statement.value) or (_side(name) if "_" in name else None)


def _side_of_call(call: ast.Call) -> set[str] | None:
    """Return whether a call is given rows of the test or of a validation; else what it is called, since `validate` may be given either.

    >>> calls = [ast.parse(text, mode="eval").body for text in ("validate(net, test_loader)", "score(net, val_rows)", "test(net)", "loss.item()")]
    >>> [_side_of_call(each) is side for each, side in zip(calls, (_TEST, _VALIDATION, _TEST, None), strict=True)]
    [True, True, True, True]
    """
    given = " ".join(ast.unparse(each) for each in (*call.args, *(each.value for each in call.keywords)))
    words = {word.lower() for word in re.split(r"[\W_]+", given)}
    if words & _TEST and words & _VALIDATION:
        return None
    return _side(given) or _side(ast.unparse(call.func))


def _choosers(loop: Loop) -> Iterator[tuple[int, ast.expr]]:
    """Yield the scores by which something is kept, or is waited or stopped for, and their lines."""
    for each in ast.walk(loop):
        if isinstance(each, ast.If):
            for pair in filter(None, map(_compared, ast.walk(each.test))):
                score, best = pair
                wanted = ast.unparse(best)
                stores = (e for body in each.body for e in ast.walk(body) if isinstance(e, ast.Assign))
                if any(wanted in _targets(store) for store in stores):
                    yield each.lineno, score
        elif isinstance(each, ast.Call) and each.args:
            method = isinstance(each.func, ast.Attribute) and each.func.attr in (
                "step",
                "update",
                "should_stop",
            )
            called = each.func.value if method and isinstance(each.func, ast.Attribute) else each.func
            if _CHOOSES.search(ast.unparse(called)):
                yield each.lineno, each.args[0]


def _compared(node: ast.AST) -> tuple[ast.expr, ast.expr] | None:
    """Return a score and the best one with which it is compared by size; None for other nodes."""
    if not isinstance(node, ast.Compare) or len(node.ops) > 1:
        return None
    if not isinstance(node.ops[0], ast.Lt | ast.LtE | ast.Gt | ast.GtE):
        return None
    left, right = node.left, node.comparators[0]
    if BEST.search(last_name(right)):
        return left, right
    return (right, left) if BEST.search(last_name(left)) else None


def _targets(statement: ast.Assign) -> list[str]:
    return [
        ast.unparse(part)
        for target in statement.targets
        for part in (target.elts if isinstance(target, ast.Tuple) else [target])
    ]


def _side(text: str) -> set[str] | None:
    """Return the words of the test, or of a validation, if a text has those alone; None where it has both or neither.

    >>> _side("evaluate(model, test_loader)") is _TEST, _side("test(val_loader)") is _VALIDATION, _side("evaluate(values)")
    (True, True, None)
    """
    words = {word.lower() for word in re.split(r"[\W_]+", text)}
    if words & _VALIDATION:
        return _VALIDATION
    return _TEST if words & _TEST else None
