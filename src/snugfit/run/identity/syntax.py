"""The source of functions and classes as syntax: what it does, without its layout, comments and docstrings."""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import linecache
import textwrap
import types
from collections.abc import Iterator
from typing import Any

from snugfit.system.digest import NO_DIGEST

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_CHANGING = frozenset(
    {
        "add",
        "append",
        "clear",
        "discard",
        "extend",
        "insert",
        "pop",
        "popitem",
        "remove",
        "reverse",
        "setdefault",
        "sort",
        "update",
    }
)
"""Methods that change a list, a dict or a set in place."""

_UNREADABLE = (OSError, TypeError, SyntaxError, ValueError, RecursionError)
"""The errors of a source that is not there, that is no Python, has null bytes, or is nested too deeply."""


def digest_of_syntax(value: type | types.CodeType) -> str:
    """Return the sha256 of a function's or a class's syntax; `NO_DIGEST` where there is no source to be had.

    It is the same for a source that is laid out, commented or documented otherwise, and in all versions of Python that parse it alike.
    """
    try:
        nodes = _class_nodes(value) if isinstance(value, type) else _function_nodes(value)
        shape = "\n".join("".join(_shape(node)) for node in nodes)
    except _UNREADABLE:
        return NO_DIGEST
    if not nodes:
        return NO_DIGEST
    return hashlib.sha256(shape.encode("utf-8", "surrogatepass")).hexdigest()


def changed_by_functions(code: types.CodeType) -> frozenset[str] | None:
    """Return the names that functions of the file or the notebook's cell of `code` assign as globals, or change in place.

    Such a name holds a counter or a record, and no setting. None where there is no source.
    """
    try:
        return _changed(_text_of(code))
    except _UNREADABLE:
        return None


def _text_of(code: types.CodeType) -> str:
    """Return the whole file, or the whole cell of a notebook, that a function was written in."""
    linecache.checkcache(code.co_filename)  # a notebook keeps the text of its cells there
    lines = linecache.getlines(code.co_filename)
    if not lines:
        raise OSError(f"{code.co_filename} has no source")
    return "".join(lines)


@functools.lru_cache(maxsize=32)
def _parsed(text: str) -> ast.Module:
    return ast.parse(text)


def _function_nodes(code: types.CodeType) -> list[ast.AST]:
    """Return the function that begins on the line of `code`; of lambdas, which have no names, all that begin there."""
    kinds = (ast.Lambda,) if code.co_name == "<lambda>" else (ast.FunctionDef, ast.AsyncFunctionDef)
    return [
        node
        for node in ast.walk(_parsed(_text_of(code)))
        if isinstance(node, kinds)
        and _first_line(node) == code.co_firstlineno
        and getattr(node, "name", code.co_name) == code.co_name
    ]


def _first_line(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> int:
    """Return the line that a code object names as its first: that of a decorator where there is one."""
    decorators = [] if isinstance(node, ast.Lambda) else node.decorator_list
    return min(node.lineno, *(each.lineno for each in decorators)) if decorators else node.lineno


def _class_nodes(value: type) -> list[ast.AST]:
    """Return the definition of a class.

    It is found by one of its methods, as `inspect` knows a class by its module's file alone, which a notebook has none of.
    """
    for entry in vars(value).values():
        code = getattr(inspect.unwrap(entry) if callable(entry) else None, "__code__", None)
        if code is None or not code.co_qualname.startswith(f"{value.__qualname__}."):
            continue
        try:
            tree = _parsed(_text_of(code))
        except OSError:  # a method that was made, as those of a dataclass
            continue
        around = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.ClassDef)
            and node.name == value.__name__
            and node.lineno <= code.co_firstlineno <= (node.end_lineno or 0)
        ]
        if around:
            return [max(around, key=lambda node: node.lineno)]
    return [*ast.parse(textwrap.dedent(inspect.getsource(value))).body]


def _shape(node: Any) -> Iterator[str]:
    """Yield the parts of a syntax tree's text; fields that hold nothing are left out, as versions of Python differ in which there are."""
    if isinstance(node, list):
        for each in node:
            if not _is_text_alone(each):
                yield from _shape(each)
    elif isinstance(node, ast.AST):
        yield f"{type(node).__name__}("
        for name, value in ast.iter_fields(node):
            if value is not None and value != [] and name != "kind":
                yield f"{name}="
                yield from _shape(value)
                yield ","
        yield ")"
    else:
        yield repr(node)


def _is_text_alone(node: Any) -> bool:
    """Return whether a statement is a string and nothing else, as a docstring is."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


@functools.lru_cache(maxsize=32)
def _changed(text: str) -> frozenset[str]:
    changed: set[str] = set()
    for function in ast.walk(_parsed(text)):
        if not isinstance(function, _FUNCTIONS):
            continue
        declared: set[str] = set()
        local: set[str] = set()
        written: set[str] = set()
        for node in ast.walk(function):
            if isinstance(node, (ast.Global, ast.Nonlocal)):
                declared.update(node.names)
            elif isinstance(node, ast.arg):
                local.add(node.arg)
            elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                local.add(node.id)
            elif isinstance(node, (ast.Subscript, ast.Attribute)) and not isinstance(node.ctx, ast.Load):
                written.add(_root(node))
            elif (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in _CHANGING
            ):
                written.add(_root(node.func))
        changed |= (written - local) | declared
    return frozenset(changed - {""})


def _root(node: ast.AST) -> str:
    """Return the name that attributes and entries are of; empty where they are of no name."""
    while isinstance(node, (ast.Subscript, ast.Attribute)):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
