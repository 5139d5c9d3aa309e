"""Checkpoints that are written where a score is compared with the best one, read in the script's source: whether anything notes the new best."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple, TypeGuard

from snugfit.doctor.observe.source.script_syntax import (
    BY_SIZE,
    Function,
    Loop,
    around,
    own_nodes,
    spans,
    syntax_of,
)

_BEST = re.compile(r"best|lowest|highest", re.IGNORECASE)
_MAKERS = ("__init__", "__post_init__", "__new__", "setup", "reset")
_ENDS = (ast.Continue, ast.Break, ast.Return, ast.Raise)


class Alias(NamedTuple):
    """Another name for what is trained, which a condition on the best score gives it: `owner.source` is what has it, or `source`."""

    name: str
    owner: str
    source: str
    line: int


@lru_cache(maxsize=512)
def aliases_of_best(file: str, function: str) -> tuple[Alias, ...]:
    """Return the names that a function, or a module, gives in a loop where a score beats the best one, if the loop does not make what they name anew."""
    tree = syntax_of(file)
    functions = [each for each in ast.walk(tree) if isinstance(each, Function)]
    own: list[ast.AST] = [each for each in functions if each.name == function]
    if function == "<module>":
        inner = {id(part) for each in functions for part in ast.walk(each)}
        own = [each for each in tree.body if id(each) not in inner]
    return tuple(alias for scope in own for alias in _aliases_in(scope))


def _aliases_in(scope: ast.AST) -> Iterator[Alias]:
    for loop in ast.walk(scope):
        if not isinstance(loop, Loop):
            continue
        stored = {ast.unparse(e) for e in ast.walk(loop) if isinstance(getattr(e, "ctx", None), ast.Store)}
        for condition in ast.walk(loop):
            if not isinstance(condition, ast.If) or not any(map(_is_by_size, ast.walk(condition.test))):
                continue
            for each in condition.body:
                if not isinstance(each, ast.Assign) or not isinstance(each.value, ast.Name | ast.Attribute):
                    continue
                target, value = each.targets[0], each.value
                named = isinstance(target, ast.Name | ast.Attribute) and _BEST.search(_name(target))
                if not named or ast.unparse(value) in stored:
                    continue
                owner = (
                    value.value.id
                    if isinstance(value, ast.Attribute) and isinstance(value.value, ast.Name)
                    else ""
                )
                if isinstance(value, ast.Name) or owner:
                    yield Alias(ast.unparse(target), owner, _name(value), each.lineno)


@lru_cache(maxsize=512)
def unnoted_best(file: str, line: int) -> str:
    """Return the name of the best score with which a condition around this line compares another one, if nothing sets it where that is repeated.

    "" where it is set, where there is no such condition, and where the name is given by a caller.
    """
    tree = syntax_of(file)
    around = [each for each in ast.walk(tree) if spans(each, line)]
    for condition in around:
        if not isinstance(condition, ast.If) or not any(spans(each, line) for each in condition.body):
            continue
        for best in _compared(condition.test):
            if not _is_set(tree, around, best):
                return best.attr if isinstance(best, ast.Attribute) else best.id
    return ""


@lru_cache(maxsize=512)
def reset_best(file: str, line: int) -> tuple[str, int]:
    """Return the name of the best score with which a condition around this line compares another one, and the line before that which begins it anew in each pass.

    "" and 0 where no statement of the innermost loop's own does; one under a condition has its reason.
    """
    tree = syntax_of(file)
    loops = [each for each in ast.walk(tree) if isinstance(each, Loop) and spans(each, line)]
    body = max(loops, key=lambda each: each.lineno).body if loops else []
    condition = next((each for each in body if spans(each, line)), None)
    if not isinstance(condition, ast.If):
        return "", 0
    for best in _compared(condition.test):
        for each in body[: body.index(condition)]:
            target = each.targets[0] if isinstance(each, ast.Assign) else None
            same = isinstance(target, ast.Name | ast.Attribute) and ast.unparse(target) == ast.unparse(best)
            if isinstance(each, ast.Assign) and same and _is_number(each.value):
                return _name(best), each.lineno
    return "", 0


@lru_cache(maxsize=512)
def is_under_condition(file: str, line: int) -> bool:
    """Return whether a line stands under a condition in its function, or behind one that ends the pass or the function; of a module's own lines, within its loops."""
    tree = syntax_of(file)
    scope, loops = around(tree, line)
    inside = loops[0] if isinstance(scope, ast.Module) and loops else scope
    for each in own_nodes(inside):
        if not isinstance(each, ast.If | ast.IfExp | ast.While | ast.Try | ast.Match):
            continue
        if isinstance(each, ast.If) and "__name__" in ast.unparse(each.test):
            continue
        if spans(each, line) and not (isinstance(each, ast.While) and each in loops):
            return True
        if isinstance(each, ast.If) and each.lineno < line and any(isinstance(e, _ENDS) for e in each.body):
            return True
    return False


@lru_cache(maxsize=64)
def compares_best(file: str) -> bool:
    """Return whether a condition of a file compares a score with the best one by size."""
    conditions = (each for each in ast.walk(syntax_of(file)) if isinstance(each, ast.If))
    return any(True for each in conditions for _ in _compared(each.test))


def _is_number(value: ast.expr) -> bool:
    """Return whether an expression is a number as it stands, infinity among them.

    >>> [_is_number(ast.parse(text, mode="eval").body) for text in ("-1", "float('inf')", "-math.inf", "score(model)", "best")]
    [True, True, True, False, False]
    """
    if isinstance(value, ast.UnaryOp):
        return _is_number(value.operand)
    if isinstance(value, ast.Call):
        return ast.unparse(value.func) == "float" and all(
            isinstance(each, ast.Constant) for each in value.args
        )
    if isinstance(value, ast.Attribute):
        return value.attr == "inf"
    return isinstance(value, ast.Constant) and isinstance(value.value, int | float)


def _is_by_size(node: ast.AST) -> TypeGuard[ast.Compare]:
    return isinstance(node, ast.Compare) and isinstance(node.ops[0], BY_SIZE)


def _compared(test: ast.expr) -> Iterator[ast.Name | ast.Attribute]:
    """Yield the names of best scores in the comparisons of a condition by size."""
    for each in ast.walk(test):
        if _is_by_size(each):
            for side in (each.left, *each.comparators):
                if isinstance(side, ast.Name | ast.Attribute) and _BEST.search(_name(side)):
                    yield side


def _is_set(tree: ast.Module, around: list[ast.AST], best: ast.Name | ast.Attribute) -> bool:
    """Return whether a name is set where the comparison is repeated.

    An attribute is by any method but one that makes the object, a name in the loop, or in a function to which it is not its own.
    """
    if isinstance(best, ast.Attribute):
        makers = [e for e in ast.walk(tree) if isinstance(e, Function) and e.name in _MAKERS]
        made = {id(each) for maker in makers for each in ast.walk(maker)}
        stores = [e for e in ast.walk(tree) if isinstance(e, ast.Attribute) and _stores(e, best.attr)]
        return any(id(each) not in made for each in stores)
    loop = next((each for each in around if isinstance(each, ast.For | ast.While)), None)
    function = next((each for each in reversed(around) if isinstance(each, Function)), None)
    if loop is None or (function is not None and spans(loop, function.lineno)):
        return True  # the loop is a caller's, which may note it
    if any(isinstance(each, ast.Global | ast.Nonlocal) and best.id in each.names for each in ast.walk(tree)):
        return True
    return any(isinstance(each, ast.Name) and _stores(each, best.id) for each in ast.walk(loop))


def _stores(node: ast.Name | ast.Attribute, name: str) -> bool:
    return _name(node) == name and isinstance(node.ctx, ast.Store)


def _name(node: ast.Name | ast.Attribute) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id
