"""Losses that a script's source divides by the number of micro-batches whose gradients it means to gather."""

from __future__ import annotations

import ast
import re
from functools import lru_cache

from snugfit.doctor.observe.source.script_syntax import around, last_name, names_in, spans, syntax_of

_OF_A_WINDOW = re.compile(r"accum|grad_acc|(^|_)acc_(steps?|iters?|batches)$|iter_size|update_freq", re.I)
_OF_ROWS = re.compile(r"token|sample|item|row|label|count|target|example|loss|len", re.I)
_Divided = ast.BinOp | ast.AugAssign


@lru_cache(maxsize=64)
def divisor_of_window(file: str, line: int) -> str:
    """Return the name, of micro-batches that are gathered, by which what this line differentiates is divided there or where its name was last set; "" without."""
    tree = syntax_of(file)
    scope, _ = around(tree, line)
    here = next(
        (each for each in ast.walk(scope) if isinstance(each, ast.Expr) and spans(each, line)),
        None,
    )
    if here is None:
        return ""
    before = [
        each
        for each in ast.walk(scope)
        if isinstance(each, ast.Assign | ast.AugAssign)
        and each.lineno < line
        and _sets(each) & names_in(here)
    ]
    last = max(before, key=lambda each: each.lineno, default=None)
    statements = [here] if last is None else [here, last]
    parts = [each for statement in statements for each in ast.walk(statement) if isinstance(each, _Divided)]
    return next(filter(None, map(_divisor, parts)), "")


def _sets(statement: ast.Assign | ast.AugAssign) -> set[str]:
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return {each.id for each in targets if isinstance(each, ast.Name)}


def _divisor(node: _Divided) -> str:
    """Return the name of a number of micro-batches by which a node divides; "" where it does not.

    >>> [_divisor(ast.parse(text).body[0].value) for text in ("loss / args.accum_steps", "loss / accumulated_tokens", "loss * 2")]
    ['args.accum_steps', '', '']
    """
    by = node.right if isinstance(node, ast.BinOp) else node.value
    if not isinstance(node.op, ast.Div):
        return ""
    while isinstance(by, ast.Call) and len(by.args) == 1:  # float(steps)
        by = by.args[0]
    name = last_name(by)
    if isinstance(by, ast.Subscript) and isinstance(by.slice, ast.Constant):
        name = str(by.slice.value)
    return ast.unparse(by) if _OF_A_WINDOW.search(name) and not _OF_ROWS.search(name) else ""
