"""Names that a loop sets anew in each pass without reading them, and that are read once it has ended: what the last pass left."""

from __future__ import annotations

import ast
from functools import lru_cache

from snugfit.doctor.observe.source.script_syntax import Loop, around, reads, spans, syntax_of

_INNER = ast.GeneratorExp | ast.ListComp | ast.SetComp | ast.DictComp | ast.Lambda
"""Passes within a statement, of which it may take all."""


@lru_cache(maxsize=512)
def is_repeated(file: str, line: int) -> bool:
    """Return whether a line stands in a loop of its function, or in a comprehension."""
    tree = syntax_of(file)
    return bool(around(tree, line)[1]) or any(
        isinstance(each, _INNER) and spans(each, line) for each in ast.walk(tree)
    )


@lru_cache(maxsize=512)
def last_set(file: str, line: int) -> int:
    """Return the last line before this one, in its function, that sets the name on which this one calls a method, or an attribute of it; 0 without."""
    tree = syntax_of(file)
    scope, _ = around(tree, line)
    calls = [each.func for each in ast.walk(scope) if isinstance(each, ast.Call) and spans(each, line)]
    names = {
        each.value.id
        for each in calls
        if isinstance(each, ast.Attribute) and isinstance(each.value, ast.Name)
    }
    lines = [0]
    for each in (part for part in ast.walk(scope) if isinstance(part, ast.Assign)):
        for target in each.targets:
            inner = target.value if isinstance(target, ast.Attribute) else target
            if isinstance(inner, ast.Name) and inner.id in names and each.lineno < line:
                lines.append(each.lineno)
    return max(lines)


@lru_cache(maxsize=512)
def read_after_loop(file: str, line: int) -> tuple[str, int] | None:
    """Return the name that the statement of this line sets in a loop, and the line behind the loop that reads what is left of it.

    None where the loop reads the name too, as it does to sum it up or to collect it, where the statement has a loop of its own, as `sum(f(x) for x in rows)`,
    where nobody reads the name, or where the file is no source.
    """
    tree = syntax_of(file)
    scope, loops = around(tree, line)
    if not loops:
        return None
    loop = loops[-1]
    sums = [each for each in ast.walk(loop) if isinstance(each, ast.AugAssign) and spans(each, line)]
    if sums and isinstance(sums[0].target, ast.Name) and _begins_in(loop, sums[0].target.id):
        return _read_behind(scope, loop, sums[0].target.id)
    statement = next(
        (each for each in ast.walk(loop) if isinstance(each, ast.Assign) and spans(each, line)), None
    )
    if statement is None or len(statement.targets) != 1 or not isinstance(statement.targets[0], ast.Name):
        return None
    if any(isinstance(each, _INNER) and spans(each, line) for each in ast.walk(statement)):
        return None
    name = statement.targets[0].id
    return None if reads(loop, name) else _read_behind(scope, loop, name)


def _begins_in(loop: Loop, name: str) -> bool:
    """Return whether each pass of a loop sets a name to a number first, and only sums it up then."""
    begins = [
        each
        for each in loop.body
        if isinstance(each, ast.Assign)
        and isinstance(each.value, ast.Constant)
        and name in {target.id for target in each.targets if isinstance(target, ast.Name)}
    ]
    read = any(
        isinstance(each, ast.Name) and each.id == name and isinstance(each.ctx, ast.Load)
        for each in ast.walk(loop)
    )
    return bool(begins) and not read


def _read_behind(scope: ast.AST, loop: Loop, name: str) -> tuple[str, int] | None:
    """Return a name and the line behind a loop that reads it before it is set again; None without."""
    end = loop.end_lineno or loop.lineno
    later = [
        each
        for each in ast.walk(scope)
        if isinstance(each, ast.Name) and each.id == name and each.lineno > end
    ]
    first = min(later, key=lambda each: (each.lineno, not isinstance(each.ctx, ast.Load)), default=None)
    return (name, first.lineno) if first is not None and isinstance(first.ctx, ast.Load) else None
