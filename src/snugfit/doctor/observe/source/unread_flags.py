"""Ends of episodes that a script has at hand where it computes the targets of an agent, and does not read there."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from typing import NamedTuple

from snugfit.doctor.observe.source.script_syntax import own_nodes, syntax_of

_DONE = re.compile(
    r"(^|_)(done|dones|terminal|terminals|terminated|not_?done|non_?final|mask|masks)(_|$)", re.IGNORECASE
)
_FLAG = re.compile(r"(^|_)(done|dones|terminal|terminals|terminated)(_|$)", re.IGNORECASE)
_DISCOUNT = re.compile(r"gamma|discount", re.IGNORECASE)
_LOSS = re.compile(r"loss|criterion|backward")


class Unread(NamedTuple):
    """A line that adds a discounted value to rewards, and the name of the flags that it leaves out."""

    line: int
    name: str


@lru_cache(maxsize=64)
def flags_left_out(file: str) -> Unread | None:
    """Return the line of a function that learns, which adds a discounted value of a model to rewards, where flags of ends are set in that function and nothing in it reads them; None without.

    Where the function reads any such flag or mask, as to choose rows that go on, they are not left out.
    """
    tree = syntax_of(file)
    field = _field_of_flags(tree)
    for scope in ast.walk(tree):
        if not isinstance(scope, ast.FunctionDef | ast.Module):
            continue
        body = own_nodes(scope)
        text = {each.attr for each in body if isinstance(each, ast.Attribute)} | {
            each.id for each in body if isinstance(each, ast.Name)
        }
        if not any(_LOSS.search(name) for name in text):
            continue
        bootstrap = next(
            (each.lineno for each in body if isinstance(each, ast.BinOp) and _is_bootstrap(each)), 0
        )
        flags = {
            each.id
            for each in body
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store) and _FLAG.search(each.id)
        }
        read = [name for each in body if (name := _read_name(each)) and _DONE.search(name)]
        # a flag's own line reads the field of the same name of what was drawn
        sources = {name for each in body if isinstance(each, ast.Assign) for name in _fields_of_flags(each)}
        fields = {each.attr for each in body if isinstance(each, ast.Attribute)}
        if field and any("reward" in name for name in fields):
            flags.add(field)
        if bootstrap and flags and not [name for name in read if name not in sources]:
            return Unread(bootstrap, min(flags))
    return None


def _field_of_flags(tree: ast.AST) -> str:
    """Return the field of a named tuple, made from names, that has the flags of ends beside rewards; "" without."""
    for call in (each for each in ast.walk(tree) if isinstance(each, ast.Call)):
        if ast.unparse(call.func).endswith("namedtuple") and len(call.args) > 1:
            words = re.findall(r"\w+", ast.unparse(call.args[1]))
            flag = next((word for word in words if _FLAG.search(word)), "")
            if flag and any("reward" in word for word in words):
                return flag
    return ""


def _read_name(node: ast.AST) -> str:
    """Return the name, the attribute or the key that a node reads; "" where it reads none."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        return node.id
    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
        return node.attr
    return (
        node.value
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier()
        else ""
    )


def _fields_of_flags(statement: ast.Assign) -> set[str]:
    """Return the fields and keys that a statement reads to set flags of ends: reading them there is no use of them."""
    stored = {
        each.id for target in statement.targets for each in ast.walk(target) if isinstance(each, ast.Name)
    }
    if not any(_FLAG.search(name) for name in stored):
        return set()
    return {
        name
        for each in ast.walk(statement.value)
        if not isinstance(each, ast.Name) and (name := _read_name(each))
    }


def _is_bootstrap(node: ast.AST) -> bool:
    """Return whether a node adds a product with a discount to something, as `rewards + gamma * values` does, of names alone.

    >>> _is_bootstrap(ast.parse("r + gamma * q", mode="eval").body), _is_bootstrap(ast.parse("r + gamma * q * (1 - d)", mode="eval").body)
    (True, False)
    """
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add):
        return False
    product = next((each for each in (node.right, node.left) if isinstance(each, ast.BinOp)), None)
    if product is None or not isinstance(product.op, ast.Mult):
        return False
    names = {_read_name(each) for each in ast.walk(product)} - {""}
    discounted = any(_DISCOUNT.search(name) for name in names)
    return discounted and not any(_DONE.search(name) for name in names) and "1 -" not in ast.unparse(product)
