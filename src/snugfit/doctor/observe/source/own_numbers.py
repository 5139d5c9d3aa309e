"""Classes and words that a script numbers in the order in which they come, once in the training rows and once more in rows that are held out."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from snugfit.doctor.observe.source.script_syntax import last_name, names_in, names_set_by, syntax_of

_TRAINED = re.compile(r"train|(^|_)tr(_|$)", re.IGNORECASE)
_SCORED = re.compile(r"test|(^|_)val(id)?|eval|held|(^|_)dev", re.IGNORECASE)
_ORDERS = ("sorted", "unique", "sort")


class OwnNumbers(NamedTuple):
    """A table that numbers held-out rows by themselves.

    Args:
        line: where it is made; `rows` of which.
        first: the line that makes the one of the training.
    """

    line: int
    rows: str
    first: int


@lru_cache(maxsize=64)
def numbered_anew(file: str) -> OwnNumbers | None:
    """Return the table that numbers what held-out rows have, where the same is made of the training rows and both are read; None without.

    What is sorted first has the same numbers wherever the same classes come by.
    """
    tree = syntax_of(file)
    made = list(_tables(tree))
    for kind, rows, node in made:
        first = next((e.lineno for other, r, e in made if other == kind and _is_of(r, _TRAINED, _SCORED)), 0)
        if first and _is_of(rows, _SCORED, _TRAINED) and _is_read(tree, node):
            return OwnNumbers(node.lineno, rows, first)
    return None


def _is_of(rows: str, these: re.Pattern[str], others: re.Pattern[str]) -> bool:
    return bool(these.search(rows)) and not others.search(rows)


def _tables(tree: ast.Module) -> Iterator[tuple[str, str, ast.expr]]:
    """Yield the tables of numbers that a script makes: how, of which rows, and the expression."""
    functions = {
        each.name
        for each in ast.walk(tree)
        if isinstance(each, ast.FunctionDef)
        and any(isinstance(e, ast.Return) and e.value is not None and _numbers(e.value) for e in each.body)
        and not any(_orders(e) for e in ast.walk(each))
    }
    within = {id(e) for each in ast.walk(tree) if isinstance(each, ast.FunctionDef) for e in ast.walk(each)}
    for each in ast.walk(tree):
        if isinstance(each, ast.Call) and last_name(each.func) in functions and each.args:
            yield last_name(each.func), " ".join(sorted(names_in(each.args[0]))), each
        elif (
            isinstance(each, ast.DictComp)
            and id(each) not in within
            and _numbers(each)
            and not any(map(_orders, ast.walk(each)))
        ):
            yield "", " ".join(sorted(names_in(each.generators[0].iter))), each


def _numbers(value: ast.expr) -> bool:
    """Return whether an expression is a dictionary from what comes by to its number.

    >>> [_numbers(ast.parse(text, mode="eval").body) for text in ("{c: i for i, c in enumerate(x)}", "{i: c for i, c in enumerate(x)}")]
    [True, False]
    """
    if not isinstance(value, ast.DictComp) or len(value.generators) != 1:
        return False
    over, target = value.generators[0].iter, value.generators[0].target
    counts = isinstance(over, ast.Call) and last_name(over.func) == "enumerate"
    number = target.elts[0] if isinstance(target, ast.Tuple) else target
    return counts and isinstance(number, ast.Name) and number.id in names_in(value.value)


def _orders(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and last_name(node.func) in _ORDERS


def _is_read(tree: ast.Module, table: ast.expr) -> bool:
    """Return whether a table of numbers is given to what takes held-out rows, or rows are looked up in it."""
    assigned = (each for each in ast.walk(tree) if isinstance(each, ast.Assign) and each.value is table)
    names = {name for each in assigned for name in names_set_by(each)}
    for each in ast.walk(tree):
        if isinstance(each, ast.Call):
            given = [*each.args, *(keyword.value for keyword in each.keywords)]
            others = [e for e in given if e is not table and not (isinstance(e, ast.Name) and e.id in names)]
            scored = any(_SCORED.search(name) for e in others for name in names_in(e))
            if len(others) < len(given) and scored:
                return True
        if isinstance(each, ast.Subscript) and names_in(each.value) & names:
            return True
    return False
