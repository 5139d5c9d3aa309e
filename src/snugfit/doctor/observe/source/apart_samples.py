"""Inputs and targets that a function of the script's draws at random, each by a call of its own, read in its source."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache

from snugfit.doctor.observe.source.row_orders import TARGETS
from snugfit.doctor.observe.source.script_syntax import last_name, syntax_of

_DRAWS = frozenset(
    ["randint", "randperm", "permutation", "choice", "choices", "shuffle", "multinomial", "integers"]
)
_FIXES = frozenset(["manual_seed", "seed", "default_rng", "Random", "RandomState"])
_GIVEN = frozenset(["generator", "rng", "seed", "random_state", "index", "indices", "idx", "perm", "order"])


@lru_cache(maxsize=64)
def sampled_apart(file: str) -> tuple[int, str, str] | None:
    r"""Return the line of the second of two calls of one function, one behind the other, that draw rows of two arrays, and what these are called; None without.

    The function draws anew in each call, and is given no order and nothing that it draws from.

    >>> text = "def take(rows): return rows[torch.randint(len(rows), (8,))]\nx, y = take(X), take(Y)"
    >>> _apart(ast.parse(text)), _apart(ast.parse(text.replace("take(X), take(Y)", "take(X), other(Y)")))
    ((2, 'X', 'Y'), None)
    """
    return _apart(syntax_of(file))


def _apart(tree: ast.Module) -> tuple[int, str, str] | None:
    drawing = {
        each.name for each in ast.walk(tree) if isinstance(each, ast.FunctionDef) and _draws_anew(each)
    }
    if not drawing:
        return None
    for block in _blocks(tree):
        before: tuple[str, str, str] | None = None
        for statement in block:
            for target, value in _set_by(statement):
                call = value if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) else None
                rows = call.args[0] if call is not None and call.args else None
                if call is None or not isinstance(rows, ast.Name) or last_name(call.func) not in drawing:
                    before = None
                    continue
                function = last_name(call.func)
                same = before is not None and before[0] == function and before[1] != rows.id
                kinds = [
                    bool(TARGETS.search(each) or TARGETS.search(to))
                    for each, to in ((rows.id, target), before[1:] if before else ("", ""))
                ]
                if same and before is not None and kinds[0] != kinds[1]:
                    return call.lineno, before[1], rows.id
                before = function, rows.id, target
            if not isinstance(statement, ast.Assign):
                before = None
    return None


def _draws_anew(function: ast.FunctionDef) -> bool:
    """Return whether a function takes rows of its first argument by what it draws itself, with no seed."""
    names = [each.arg for each in (*function.args.args, *function.args.kwonlyargs)]
    if not names or _GIVEN.intersection(names):
        return False
    called = {last_name(each.func) for each in ast.walk(function) if isinstance(each, ast.Call)}
    taken = any(
        isinstance(each, ast.Subscript) and isinstance(each.value, ast.Name) and each.value.id == names[0]
        for each in ast.walk(function)
    )
    return taken and bool(called & _DRAWS) and not called & _FIXES


def _blocks(tree: ast.Module) -> Iterator[list[ast.stmt]]:
    for each in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(each, name, None)
            if isinstance(block, list):
                yield block


def _set_by(statement: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    """Yield the names that an assignment sets, and each one's value."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return
    target, value = statement.targets[0], statement.value
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        yield from ((last_name(one), other) for one, other in zip(target.elts, value.elts, strict=True))
    else:
        yield last_name(target), value
