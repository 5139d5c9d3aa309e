"""Loops that stop where a score has not gained for a while and keep nothing of the best epoch, read in the script's source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from snugfit.doctor.observe.source.best_directions import BEST
from snugfit.doctor.observe.source.script_syntax import BY_SIZE, Loop, around, last_name, own_nodes, syntax_of

_KEEPS = re.compile(
    r"sav|stat|cop|checkpoint|ckpt|snapshot|keep|store|dump|clone|remember|load", re.IGNORECASE
)
_WEIGHTS = re.compile(r"stat|model|net|weight|param|kept", re.IGNORECASE)
_TELLS = frozenset(["print", "info", "debug", "write", "float", "int", "item", "round", "format"])
Value = ast.Name | ast.Attribute


class EarlyEnd(NamedTuple):
    """A loop that stops: the score and the best one, whether less is better, and the comparison of the counter with what it may wait."""

    score: Value
    best: Value
    less: bool
    waited: ast.Compare


@lru_cache(maxsize=256)
def early_ends(file: str, line: int) -> tuple[EarlyEnd, ...]:
    """Return the loops before a line of the same function that stop by a count of passes without a gain, and in which nothing is kept or put back."""
    tree = syntax_of(file)
    scope = around(tree, line)[0]
    nodes = own_nodes(scope)
    ends = []
    for loop in (each for each in nodes if isinstance(each, Loop)):
        last = loop.end_lineno or line
        between = [e for e in nodes if isinstance(e, ast.Call) and last < e.lineno < line]
        if last < line and not any(map(_keeps, (*between, *ast.walk(loop)))):
            ends += [EarlyEnd(*best, stop) for best in _gains(loop) for stop in _stops(loop)]
    return tuple(ends)


def _gains(loop: Loop) -> Iterator[tuple[Value, Value, bool]]:
    r"""Yield the score and the best one of each condition under which the best is set and nothing but numbers is noted, and whether less is better.

    >>> text = "for e in r:\n if loss < best:\n  best, bad = loss, 0{}"
    >>> [len(list(_gains(ast.parse(text.format(more)).body[0]))) for more in ("", "\n  print(best)", "\n  note(model)")]
    [1, 1, 0]
    """
    for each in (e for e in ast.walk(loop) if isinstance(e, ast.If)):
        calls = [e for part in each.body for e in ast.walk(part) if isinstance(e, ast.Call)]
        test = each.test
        if not isinstance(test, ast.Compare) or len(test.ops) > 1 or not isinstance(test.ops[0], BY_SIZE):
            continue
        left, right = test.left, test.comparators[0]
        if not isinstance(left, Value) or not isinstance(right, Value) or any(map(_acts, calls)):
            continue
        lowers = isinstance(test.ops[0], ast.Lt | ast.LtE)
        score, best, less = (
            (left, right, lowers) if BEST.search(last_name(right)) else (right, left, not lowers)
        )
        parts = (e for part in each.body for e in ast.walk(part) if isinstance(e, Value))
        stores = {ast.unparse(e) for e in parts if isinstance(e.ctx, ast.Store)}
        if ast.unparse(best) in stores and not any(map(_WEIGHTS.search, stores)):
            yield score, best, less


def _stops(loop: Loop) -> Iterator[ast.Compare]:
    """Yield the comparisons of what the loop counts under which it ends."""
    counted = {ast.unparse(each.target) for each in ast.walk(loop) if isinstance(each, ast.AugAssign)}
    for each in (e for e in ast.walk(loop) if isinstance(e, ast.If)):
        test, ends = each.test, any(isinstance(part, ast.Break) for part in each.body)
        if (
            ends
            and isinstance(test, ast.Compare)
            and len(test.ops) == 1
            and ast.unparse(test.left) in counted
        ):
            yield test


def _keeps(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and bool(_KEEPS.search(last_name(node.func)))


def _acts(call: ast.Call) -> bool:
    return last_name(call.func) not in _TELLS
