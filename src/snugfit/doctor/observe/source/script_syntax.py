"""The syntax of a script's source: its tree, and what stands around a line of it."""

from __future__ import annotations

import ast
import re
from collections import deque
from functools import lru_cache
from pathlib import Path

Loop = ast.For | ast.AsyncFor | ast.While
Function = ast.FunctionDef | ast.AsyncFunctionDef
BY_SIZE = ast.Lt | ast.LtE | ast.Gt | ast.GtE
"""Comparisons of which of two is the larger."""


@lru_cache(maxsize=8)
def syntax_of(file: str) -> ast.Module:
    """Return the tree of a file; one of nothing where it is no source."""
    try:
        return ast.parse(Path(file).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return ast.Module([], [])


@lru_cache(maxsize=64)
def has_word(file: str, pattern: re.Pattern[str]) -> bool:
    """Return whether a name or a text of a file has a word; not its comments."""
    parts = ast.walk(syntax_of(file))
    return any(pattern.search(_text_of(each).replace(" ", "_")) for each in parts)


def _text_of(node: ast.AST) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    name = getattr(node, "name", None) or getattr(node, "arg", None) or last_name(node)
    return name if isinstance(name, str) else ""


def around(tree: ast.Module, line: int) -> tuple[ast.AST, list[Loop]]:
    """Return the function, or the module, that a line stands in, and the loops of it around that line, the innermost last."""
    scope: ast.AST = tree
    loops: list[Loop] = []
    node: ast.AST | None = tree
    while node is not None:
        node = next((each for each in ast.iter_child_nodes(node) if spans(each, line)), None)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            scope, loops = node, []
        elif isinstance(node, Loop):
            loops.append(node)
    return scope, loops


def spans(node: ast.AST, line: int) -> bool:
    """Return whether a line lies in a node."""
    first, last = getattr(node, "lineno", None), getattr(node, "end_lineno", None)
    return first is not None and last is not None and first <= line <= last


def last_name(node: ast.AST) -> str:
    """Return the last part of a dotted name, "" of anything else."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def names_in(node: ast.AST) -> set[str]:
    """Return the names that a node has anywhere in it."""
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def names_set_by(statement: ast.stmt) -> set[str]:
    """Return the names that a statement sets, also those of which it sets a part.

    >>> sorted(names_set_by(ast.parse("a, b.c, d[e] = f").body[0]))
    ['a', 'b', 'd']
    """
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    parts = [part for target in targets for part in ast.walk(target)]
    places = {
        id(inner) for part in parts if isinstance(part, ast.Subscript) for inner in ast.walk(part.slice)
    }
    return {part.id for part in parts if isinstance(part, ast.Name) and id(part) not in places}


def reads(node: ast.AST, name: str) -> bool:
    """Return whether a node, or what is within it, reads a name, or adds to it."""
    return any(
        (isinstance(each, ast.Name) and each.id == name and isinstance(each.ctx, ast.Load))
        or (isinstance(each, ast.AugAssign) and isinstance(each.target, ast.Name) and each.target.id == name)
        for each in ast.walk(node)
    )


def last_assignment(scope: ast.AST, name: str, before: int) -> ast.Assign | None:
    """Return the last statement of a scope that sets a name, or a part of it, before a line; None without."""
    sets = [
        each
        for each in ast.walk(scope)
        if isinstance(each, ast.Assign) and each.lineno < before and name in names_set_by(each)
    ]
    return max(sets, key=lambda each: each.lineno, default=None)


@lru_cache(maxsize=256)
def own_nodes(scope: ast.AST) -> tuple[ast.AST, ...]:
    """Return what is in a function, or a module, and in no function or class inside of it."""
    nodes: list[ast.AST] = []
    todo = deque(ast.iter_child_nodes(scope))
    while todo:
        each = todo.popleft()
        nodes.append(each)
        if not isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            todo.extend(ast.iter_child_nodes(each))
    return tuple(nodes)
