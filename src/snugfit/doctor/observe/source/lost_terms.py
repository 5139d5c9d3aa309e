"""Losses that a script's source computes and throws away: names that are set anew before anybody has read them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from snugfit.doctor.observe.source.script_syntax import around, last_assignment, names_in, reads, syntax_of

_LOSS = re.compile(r"loss|(^|_)(total|cost|objective|err|error|nll|elbo)(_|$|\d)", re.IGNORECASE)
_CUTS = ("item", "detach", "data", "numpy", "tolist")
_BLOCKS = ("body", "orelse", "finalbody")


class LostTerm(NamedTuple):
    """A loss that is thrown away.

    Args:
        line: the one that sets its name anew.
        name: the name.
        each_pass: whether each pass of a loop throws away what the one before it has computed.
    """

    line: int
    name: str
    each_pass: bool


@lru_cache(maxsize=64)
def lost_terms(file: str) -> tuple[LostTerm, ...]:
    """Return the losses of a file that are set anew, and differentiated or returned, without having been read."""
    return tuple(_lost_in(syntax_of(file)))


@lru_cache(maxsize=256)
def line_of_cut(file: str, line: int, name: str) -> int:
    """Return the last line before this one, in its function, that sets a name to something it takes out of its graph; 0 where that one does not."""
    scope, _ = around(syntax_of(file), line)
    last = last_assignment(scope, name, line)
    cuts = last is not None and any(
        isinstance(each, ast.Attribute) and each.attr in _CUTS for each in ast.walk(last.value)
    )
    return last.lineno if last is not None and cuts else 0


@lru_cache(maxsize=256)
def line_of_setting(file: str, line: int, name: str) -> int:
    """Return the last line before this one, in its function, that sets a name; 0 without."""
    scope, _ = around(syntax_of(file), line)
    last = last_assignment(scope, name, line)
    return last.lineno if last is not None else 0


def _lost_in(tree: ast.AST) -> Iterator[LostTerm]:
    r"""Yield what is lost in each block.

    >>> text = "def f(a, b):\n    loss = a(b) + 2 * b(a)\n    loss = b(b)\n    return loss"
    >>> list(_lost_in(ast.parse(text)))
    [LostTerm(line=3, name='loss', each_pass=False)]
    >>> list(_lost_in(ast.parse(text.replace("b(b)", "loss + b(b)"))))
    []
    >>> text = "for out in outs:\n    loss = criterion(out, y)\nloss.backward()"
    >>> list(_lost_in(ast.parse(text))), list(_lost_in(ast.parse(text.replace("loss =", "loss +="))))
    ([LostTerm(line=2, name='loss', each_pass=True)], [])
    """
    for scope in ast.walk(tree):
        for block in (getattr(scope, field, None) for field in _BLOCKS):
            if isinstance(block, list):
                yield from _lost_in_block(block)


def _lost_in_block(block: list[ast.stmt]) -> Iterator[LostTerm]:
    for place, statement in enumerate(block):
        name = _sets_loss(statement)
        plus = _is_plus(statement)
        if name and plus and _is_used(block[place + 1 :], name):
            yield LostTerm(statement.lineno, name, each_pass=False)
        if name and isinstance(statement, ast.Assign | ast.AugAssign) and _computes(statement.value):
            after = block[place + 1 :]
            again = next((number for number, each in enumerate(after) if name in names_in(each)), None)
            if again is not None and _sets_anew(after[again], name) and _is_used(after[again + 1 :], name):
                yield LostTerm(after[again].lineno, name, each_pass=False)
        if isinstance(statement, ast.For):
            yield from _lost_in_loop(statement, block[place + 1 :])


def _is_plus(statement: ast.stmt) -> bool:
    """Return whether a statement sets a name to what has a plus before it, as where += was meant."""
    value = statement.value if isinstance(statement, ast.Assign) else None
    return isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.UAdd)


def _lost_in_loop(loop: ast.For, after: list[ast.stmt]) -> Iterator[LostTerm]:
    """Yield a loss that each pass sets of what the loop goes over, that no pass reads, and that is differentiated behind the loop."""
    over = {each.id for each in ast.walk(loop.target) if isinstance(each, ast.Name)}
    leaves = any(isinstance(each, ast.Break | ast.Return | ast.Yield) for each in ast.walk(loop))
    for statement in loop.body if not leaves else []:
        name = _sets_loss(statement)
        if not name or not isinstance(statement, ast.Assign) or not _computes(statement.value):
            continue
        if any(reads(each, name) for each in loop.body) or not names_in(statement.value) & over:
            continue
        following = next((each for each in after if name in names_in(each)), None)
        if following is not None and _is_differentiated(following, name):
            yield LostTerm(statement.lineno, name, each_pass=True)


def _sets_loss(statement: ast.stmt) -> str:
    """Return the name of a loss that a statement sets; "" where it sets none."""
    target: ast.expr | None = None
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
    elif isinstance(statement, ast.AugAssign):
        target = statement.target
    return target.id if isinstance(target, ast.Name) and _LOSS.search(target.id) else ""


def _sets_anew(statement: ast.stmt, name: str) -> bool:
    """Return whether a statement sets a name to something that is computed without it."""
    return (
        isinstance(statement, ast.Assign)
        and _sets_loss(statement) == name
        and _computes(statement.value)
        and not reads(statement, name)
    )


def _computes(value: ast.expr) -> bool:
    """Return whether an expression computes something of several others, not a number to begin with."""
    return any(isinstance(each, ast.Call | ast.BinOp) for each in ast.walk(value)) or isinstance(
        value, ast.Name
    )


def _is_used(after: list[ast.stmt], name: str) -> bool:
    """Return whether one of these statements differentiates a name or returns it."""
    return any(
        _is_differentiated(each, name)
        or any(
            isinstance(inner, ast.Return) and inner.value is not None and name in names_in(inner.value)
            for inner in ast.walk(each)
        )
        for each in after
    )


def _is_differentiated(statement: ast.stmt, name: str) -> bool:
    """Return whether a statement calls `name.backward()`, or a function called so with it, through a scale or a quotient."""
    for each in ast.walk(statement):
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute):
            differentiates = each.func.attr in ("backward", "manual_backward", "grad")
            if differentiates and (
                name in names_in(each.func.value) or any(name in names_in(given) for given in each.args)
            ):
                return True
    return False
