"""The syntax of a script's source: its tree, and what stands around a line of it."""

from __future__ import annotations

import ast
from functools import lru_cache
from pathlib import Path

Loop = ast.For | ast.AsyncFor | ast.While


@lru_cache(maxsize=8)
def syntax_of(file: str) -> ast.Module:
    """Return the tree of a file; one of nothing where it is no source."""
    try:
        return ast.parse(Path(file).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return ast.Module([], [])


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
