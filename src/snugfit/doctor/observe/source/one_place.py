"""Encodings of places that are indexed by a length where the front of that length was meant: one vector for all places."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from typing import NamedTuple

from snugfit.doctor.observe.source.script_syntax import last_assignment, last_name, own_nodes, syntax_of

_PLACES = re.compile(
    r"(^|_)(pe|pos|position|positions|positional)($|_)|pos_?(emb|enc)|positional", re.IGNORECASE
)
_LENGTH = re.compile(r"([\w.]+)\.(?:size\(-?\d\)|shape\[-?\d\])|len\(([\w.]+)\)")
_ALL_LENGTHS = re.compile(r"([\w.]+)\.(?:size\(\)|shape)(?:\[.*\])?")


class OnePlace(NamedTuple):
    """A line that adds the encoding of one place to all, what it takes it from, and the length that it takes for a place."""

    line: int
    table: str
    length: str


@lru_cache(maxsize=64)
def one_place_for_all(file: str) -> OnePlace | None:
    """Return where a series is given the encoding of the place behind its last one, by its own length; None without."""
    for scope in (each for each in ast.walk(syntax_of(file)) if isinstance(each, ast.FunctionDef)):
        for each in own_nodes(scope):
            if isinstance(each, ast.BinOp | ast.AugAssign) and isinstance(each.op, ast.Add):
                sides = (each.left, each.right) if isinstance(each, ast.BinOp) else (each.target, each.value)
                for one, other in (sides, sides[::-1]):
                    length = _length_taken(scope, other)
                    if length and _is_of(scope, one, length[1]):
                        return OnePlace(other.lineno, ast.unparse(other.value), length[0])  # type: ignore[attr-defined]
    return None


def _length_taken(scope: ast.FunctionDef, node: ast.expr) -> tuple[str, str] | None:
    """Return the length of something by which a table of places is indexed, all else of it being taken whole, and of what; None without.

    >>> texts = ("pe[:, x.size(1)]", "self.pe[x.shape[0], :]", "pe[:, :x.size(1)]", "lengths[x.size(1)]", "pe[:, k]")
    >>> function = ast.parse("def f(x, k): return x").body[0]
    >>> [_length_taken(function, ast.parse(text, mode="eval").body) for text in texts]
    [('x.size(1)', 'x'), ('x.shape[0]', 'x'), None, None, None]
    """
    if not isinstance(node, ast.Subscript) or not _PLACES.search(last_name(node.value)):
        return None
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    taken = [each for each in parts if not (isinstance(each, ast.Slice) and ast.unparse(each) == ":")]
    if len(taken) != 1:
        return None
    text = ast.unparse(taken[0])
    of = _LENGTH.fullmatch(text)
    if of is None and isinstance(taken[0], ast.Name):
        made = last_assignment(scope, text, getattr(node, "end_lineno", 0) + 1)
        unpacked = made is not None and isinstance(made.targets[0], ast.Tuple)
        of = (_ALL_LENGTHS if unpacked else _LENGTH).fullmatch(ast.unparse(made.value)) if made else None
    return (text, next(each for each in of.groups() if each)) if of is not None else None


def _is_of(scope: ast.FunctionDef, node: ast.expr, name: str) -> bool:
    """Return whether an expression is something by its name, or what one call, as of a table of tokens, or a product has made of it."""
    if ast.unparse(node) == name:
        return True
    if isinstance(node, ast.Name):
        made = last_assignment(scope, node.id, node.lineno)
        return made is not None and not isinstance(made.value, ast.Name) and _is_of(scope, made.value, name)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return _is_of(scope, node.left, name) or _is_of(scope, node.right, name)
    return isinstance(node, ast.Call) and any(ast.unparse(each) == name for each in node.args)
