"""Counts of an epoch that are multiplied by the epochs already, read in the script's source: a call that is given both multiplies them once more."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from typing import NamedTuple

from snugfit.doctor.observe.source.script_syntax import (
    Function,
    last_assignment,
    last_name,
    own_nodes,
    syntax_of,
)

_OF_EPOCH = re.compile(r"(num_|n_)?(steps|iters|iterations|batches|updates)_per_epoch")
_EPOCHS = re.compile(r"(num_|n_|max_|total_)?(train_)?epochs")
_ROUNDS = ("int", "round", "ceil", "float")


class EpochsTwice(NamedTuple):
    """A call that is given a count of an epoch, under a name, and the epochs by which that is multiplied already."""

    line: int
    name: str
    epochs: str


@lru_cache(maxsize=64)
def epochs_twice(file: str) -> EpochsTwice | None:
    """Return the first call of a file that is given the epochs twice; None without."""
    tree = syntax_of(file)
    scopes = (each for each in ast.walk(tree) if isinstance(each, Function | ast.Module))
    calls = ((scope, each) for scope in scopes for each in own_nodes(scope) if isinstance(each, ast.Call))
    return next((known for scope, call in calls if (known := _twice_in(scope, call)) is not None), None)


def _twice_in(scope: ast.AST, call: ast.Call) -> EpochsTwice | None:
    r"""Return what a call is given twice.

    >>> text = "n = len(rows) * epochs\nfit(rows, {}=n, epochs=epochs)"
    >>> tree = ast.parse(text.format("steps_per_epoch"))
    >>> _twice_in(tree, tree.body[1].value)
    EpochsTwice(line=2, name='steps_per_epoch', epochs='epochs')
    >>> _twice_in(tree, ast.parse(text.format("steps")).body[1].value)
    """
    given = {each.arg: each for each in call.keywords if each.arg is not None}
    epochs = next((ast.unparse(each.value) for name, each in given.items() if _EPOCHS.fullmatch(name)), "")
    for name, each in given.items():
        if epochs and not epochs.isdigit() and _OF_EPOCH.fullmatch(name):
            value: ast.expr = each.value
            made = (
                last_assignment(scope, last_name(value), call.lineno) if isinstance(value, ast.Name) else None
            )
            value = value if made is None or not isinstance(made.targets[0], ast.Name) else made.value
            if epochs in _factors(value):
                return EpochsTwice(each.value.lineno, name, epochs)
    return None


def _factors(value: ast.expr) -> list[str]:
    """Return the factors of a product, as they stand; what is divided has none."""
    if isinstance(value, ast.Call) and last_name(value.func) in _ROUNDS and value.args:
        return _factors(value.args[0])
    if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult):
        return [*_factors(value.left), *_factors(value.right)]
    return [ast.unparse(value)]
