"""Ends of episodes that a script has at hand where it computes the targets of an agent, and does not read there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from snugfit.doctor.observe.source.script_syntax import (
    Function,
    Loop,
    last_name,
    names_in,
    names_set_by,
    own_nodes,
    syntax_of,
)

_DONE = re.compile(
    r"(^|_)(done|dones|terminal|terminals|terminated|not_?done|non_?final|mask|masks)(_|$)", re.IGNORECASE
)
_FLAG = re.compile(r"(^|_)(done|dones|terminal|terminals|terminated)(_|$)", re.IGNORECASE)
_DISCOUNT = re.compile(r"gamma|discount", re.IGNORECASE)
_LOSS = re.compile(r"loss|criterion|backward")
_MANY = re.compile(r"(^|_)(dones|terminals|terminated|masks|not_?dones)(_|$)", re.IGNORECASE)
_STORES = ("append", "add", "push", "store", "remember", "put", "insert", "extend")
MOST_STEPS = 3


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


@lru_cache(maxsize=64)
def returns_over_ends(file: str) -> Unread | None:
    """Return the line that adds to each reward the discounted sum of those behind it, where flags of ends were kept beside the rewards and nothing reads them; None without.

    Where the loop that keeps rewards ends with its episode, all of them are of one.
    """
    tree = syntax_of(file)
    if any(isinstance(each, Loop) and _ends_with_episode(each) for each in ast.walk(tree)):
        return None
    unread_list = next(_unread_lists(tree), "")
    for scope in ast.walk(tree):
        if not isinstance(scope, Function | ast.Module):
            continue
        for loop in (each for each in own_nodes(scope) if isinstance(each, Loop)):
            recursion = next((each for each in ast.walk(loop) if _goes_on(each)), None)
            inside = [part for statement in loop.body for part in ast.walk(statement)]
            if recursion is None or any(_DONE.search(_read_name(each)) for each in inside):
                continue
            name = _unread_of_loop(loop) or _unread_argument(scope) or unread_list
            if name:
                return Unread(int(getattr(recursion, "lineno", 0)), name)
    return None


@lru_cache(maxsize=64)
def masked_in_part(file: str) -> Unread | None:
    """Return the line that adds a discounted value to a reward without flags of ends, where the sum that is made of it, in the same loop, is masked by them; None without."""
    tree = syntax_of(file)
    for scope in ast.walk(tree):
        if not isinstance(scope, Function | ast.Module):
            continue
        body = own_nodes(scope)
        masks = _made_of_flags(body)
        for loop in (each for each in body if isinstance(each, Loop)):
            inside = [each for each in ast.walk(loop) if isinstance(each, ast.Assign)]
            for each in inside:
                bare = any(map(_is_bootstrap, ast.walk(each.value))) and not _names_read(each.value) & masks
                summed = next((e for e in inside if bare and _sums_up(e, names_set_by(each), masks)), None)
                if summed is not None:
                    return Unread(each.lineno, min(_names_read(summed.value) & masks - names_set_by(summed)))
    return None


def _names_read(node: ast.AST) -> set[str]:
    return {_read_name(each) for each in ast.walk(node)} - {""}


def _sums_up(statement: ast.Assign, names: set[str], masks: set[str]) -> bool:
    r"""Return whether a statement adds one of some names to its own discounted value, which a mask ends.

    >>> texts = ("a = total = d + gamma * lam * m * total", "total = d + gamma * lam * total", "total = r + gamma * m * total")
    >>> [_sums_up(ast.parse(text).body[0], {"d"}, {"m"}) for text in texts]
    [True, False, False]
    """
    read, own = _names_read(statement.value), names_set_by(statement)
    discounted = any(_DISCOUNT.search(name) for name in read)
    return bool(read & own and read & names and read & masks - own) and discounted


def _made_of_flags(body: tuple[ast.AST, ...]) -> set[str]:
    """Return the names that hold flags of ends, and those that are computed from them."""
    masks = {name for each in body if (name := _read_name(each)) and _DONE.search(name)}
    for _ in range(MOST_STEPS):
        for each in (each for each in body if isinstance(each, ast.Assign)):
            for target in each.targets:
                pairs = [(target, each.value)]
                if isinstance(target, ast.Tuple) and isinstance(each.value, ast.Tuple):
                    pairs = list(zip(target.elts, each.value.elts, strict=False))
                for one, value in pairs:
                    if _names_read(value) & masks:
                        masks |= names_set_by(ast.Assign([one], value))
    return masks


def _goes_on(node: ast.AST) -> bool:
    r"""Return whether a statement adds to something its own discounted value, as sums of rewards are made from the last one on.

    >>> [_goes_on(ast.parse(text).body[0]) for text in ("total = r + gamma * total", "total = r + gamma * total * (1 - d)", "t = r + gamma * q")]
    [True, False, False]
    """
    if not isinstance(node, ast.Assign) or not any(map(_is_bootstrap, ast.walk(node.value))):
        return False
    last = node.targets[-1]
    return isinstance(last, ast.Name) and last.id in names_in(node.value)


def _ends_with_episode(loop: Loop) -> bool:
    """Return whether a loop that keeps rewards ends where an episode does."""
    calls = [each for each in ast.walk(loop) if isinstance(each, ast.Call)]
    keeps = any(last_name(each.func) in _STORES and "rew" in ast.unparse(each).lower() for each in calls)
    if not keeps:
        return False
    if isinstance(loop, ast.While) and any(_FLAG.search(_read_name(each)) for each in ast.walk(loop.test)):
        return True
    return any(
        isinstance(each, ast.If)
        and any(_FLAG.search(_read_name(part)) for part in ast.walk(each.test))
        and any(
            isinstance(part, ast.Break | ast.Return)
            for statement in each.body
            for part in ast.walk(statement)
        )
        for each in ast.walk(loop)
    )


def _unread_of_loop(loop: Loop) -> str:
    """Return the name under which a loop over flags has each, if nothing in it reads that; "" without."""
    if not isinstance(loop, ast.For):
        return ""
    over = loop.iter.args if isinstance(loop.iter, ast.Call) and last_name(loop.iter.func) == "zip" else []
    targets = loop.target.elts if isinstance(loop.target, ast.Tuple) else []
    read = {name for statement in loop.body for each in ast.walk(statement) if (name := _read_name(each))}
    for target, values in zip(targets, over, strict=False):
        flags = any(_DONE.search(_read_name(each)) for each in ast.walk(values))
        if flags and isinstance(target, ast.Name) and target.id not in read and not target.id.startswith("_"):
            return target.id
    return ""


def _unread_argument(scope: ast.AST) -> str:
    """Return the argument of a function that holds flags and that nothing in it reads; "" without."""
    if not isinstance(scope, Function):
        return ""
    read = {_read_name(each) for statement in scope.body for each in ast.walk(statement)}
    given = [each.arg for each in (*scope.args.args, *scope.args.kwonlyargs)]
    return next((name for name in given if _DONE.search(name) and name not in read), "")


def _unread_lists(tree: ast.Module) -> Iterator[str]:
    """Yield the names of flags of many steps that a function, or the module, fills and never reads."""
    for scope in ast.walk(tree):
        if not isinstance(scope, Function | ast.Module):
            continue
        body = own_nodes(scope)
        filled = {
            id(each.func.value): each.func.value.id
            for each in body
            if isinstance(each, ast.Call)
            and isinstance(each.func, ast.Attribute)
            and each.func.attr in _STORES
            and isinstance(each.func.value, ast.Name)
        } | {
            id(each.value): each.value.id
            for each in body
            if isinstance(each, ast.Subscript)
            and isinstance(each.ctx, ast.Store)
            and isinstance(each.value, ast.Name)
        }
        read = {
            each.id
            for each in ast.walk(scope)
            if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load) and id(each) not in filled
        }
        yield from (name for name in filled.values() if _MANY.search(name) and name not in read)


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
