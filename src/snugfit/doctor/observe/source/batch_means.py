"""Means of the batches of an evaluation that a script averages, read in its source: whatever counts the batches."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from snugfit.doctor.observe.source.script_syntax import Loop, around, last_name, spans, syntax_of

_OF_ALL = re.compile(
    r"^(f1|fbeta|precision|recall|jaccard|roc_auc|average_precision|r2|balanced_accuracy|cohen_kappa)_score$|"
    r"^precision_recall_fscore_support$|matthews|^(pearson|spearman|kendall)|^(macro|micro|weighted)_?f1|corrcoef"
)
_OVERLAP = re.compile(r"iou|jaccard|dice|f1|kappa|precision|recall", re.IGNORECASE)
_COUNTS = re.compile(r"confusion|conf_?mat|(^|_)(hist|cm)(_|$)|bincount", re.IGNORECASE)
_BATCHES = re.compile(r"loader|(^|_)dl($|_)|batches|batched", re.IGNORECASE)


class Quotient(NamedTuple):
    """A line that scores one batch by other than a mean over its rows, what it calls for that, and the line that averages the scores."""

    line: int
    name: str
    averaged: int


@lru_cache(maxsize=64)
def quotients_of_batches(file: str) -> Quotient | None:
    """Return where a score of all rows together, such as an F1 or an overlap of counted classes, is computed of each batch of an evaluation, and averaged; None without."""
    for loop in (each for each in ast.walk(syntax_of(file)) if isinstance(each, ast.For)):
        if not _BATCHES.search(ast.unparse(loop.iter)) or "backward" in ast.unparse(loop):
            continue
        for call in (each for each in ast.walk(loop) if isinstance(each, ast.Call)):
            name = last_name(call.func)
            counted = _OVERLAP.search(name) and any(
                _COUNTS.search(last_name(e)) for given in call.args for e in ast.walk(given)
            )
            root = _is_root_of_mean(call)
            if _OF_ALL.search(name) or counted or root:
                averaged = mean_of_batches(file, call.lineno) or (root and _parts_divided(file, call.lineno))
                if averaged:
                    return Quotient(call.lineno, "the root of a mean" if root else name, averaged)
    return None


def _is_root_of_mean(call: ast.Call) -> bool:
    """Return whether a call takes the root of the mean over all that a batch has, not of the means of its rows.

    >>> texts = ("(e**2).mean().sqrt()", "torch.sqrt(F.mse_loss(a, b))", "(e**2).mean(1).sqrt()", "torch.sqrt(e)")
    >>> [_is_root_of_mean(ast.parse(text, mode="eval").body) for text in texts]
    [True, True, False, False]
    """
    if last_name(call.func) != "sqrt" or not isinstance(call.func, ast.Attribute):
        return False
    inner = call.args[0] if call.args else call.func.value
    while isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute) and inner.func.attr == "item":
        inner = inner.func.value
    if not isinstance(inner, ast.Call) or any(
        each.arg in ("dim", "axis", "reduction") for each in inner.keywords
    ):
        return False
    name, of_values = last_name(inner.func), ("mse_loss", "mean_squared_error")
    return name in of_values or (name == "mean" and not inner.args)


def _parts_divided(file: str, line: int) -> int:
    """Return the line that divides one part of a total by another, to which the loop around a line adds what this line gives beside a 1; 0 where none does."""
    scope, loops = around(syntax_of(file), line)
    for each in ast.walk(loops[-1]) if loops else ():
        if not isinstance(each, ast.AugAssign) or not spans(each, line):
            continue
        parts = [part for e in ast.walk(each.value) if isinstance(e, ast.List | ast.Tuple) for part in e.elts]
        total = ast.unparse(each.target)
        if any(isinstance(part, ast.Constant) and part.value == 1 for part in parts):
            for node in ast.walk(scope):
                if isinstance(node, ast.BinOp) and _divides(node) and _is_part(node.left, total):
                    return node.lineno if _is_part(node.right, total) else 0
    return 0


def _is_part(node: ast.expr, total: str) -> bool:
    return isinstance(node, ast.Subscript) and ast.unparse(node.value) == total


@lru_cache(maxsize=512)
def mean_of_batches(file: str, line: int) -> int:
    """Return the line that averages what the statement of this line, in a loop, gives of each batch; 0 where none does.

    What is multiplied before it is added up is weighed, as by the rows of its batch.
    """
    tree = syntax_of(file)
    scope, loops = around(tree, line)
    if _lists_around(scope, line):
        return _mean_of_list(scope, line)
    if not loops:
        return 0
    loop = loops[-1]
    names = {
        each.targets[0].id
        for each in ast.walk(loop)
        if isinstance(each, ast.Assign) and spans(each, line) and isinstance(each.targets[0], ast.Name)
    }
    for total in _totals(loop, names, line):
        for each in ast.walk(scope):
            if getattr(each, "lineno", 0) > (loop.end_lineno or line) and _averages(each, total, loop):
                return int(getattr(each, "lineno", 0))
    return 0


def _lists_around(scope: ast.AST, line: int) -> list[ast.ListComp | ast.GeneratorExp]:
    """Return the expressions around a line that make a list, or give its parts one by one."""
    return [e for e in ast.walk(scope) if isinstance(e, ast.ListComp | ast.GeneratorExp) and spans(e, line)]


def _mean_of_list(scope: ast.AST, line: int) -> int:
    """Return the line that averages a list which an expression around this line makes of all batches; 0 where none does."""
    for made in _lists_around(scope, line):
        if any(isinstance(each, ast.BinOp) and isinstance(each.op, ast.Mult) for each in ast.walk(made.elt)):
            continue  # weighed, as by the rows of each
        name = next(
            (
                each.targets[0].id
                for each in ast.walk(scope)
                if isinstance(each, ast.Assign)
                and each.value is made
                and isinstance(each.targets[0], ast.Name)
            ),
            "",
        )
        for each in ast.walk(scope):
            if _averages_list(each, made, name):
                return int(getattr(each, "lineno", 0))
    return 0


def _averages_list(node: ast.AST, made: ast.expr, name: str) -> bool:
    """Return whether a node is the mean of a list, as it is made or by its name."""
    if isinstance(node, ast.Call):
        given = node.args[0] if node.args and _is_mean(node.func) else None
        return given is made or (given is not None and bool(name) and ast.unparse(given) == name)
    shares = isinstance(node, ast.BinOp) and _divides(node) and bool(name) and _holds(node.left, name)
    return shares and isinstance(node, ast.BinOp) and ast.unparse(node.right) == f"len({name})"


@lru_cache(maxsize=512)
def takes_mean(file: str, line: int) -> bool:
    """Return whether the statement of this line takes a mean, or divides, or one behind it in its loop does that with the name it sets."""
    tree = syntax_of(file)
    statements = [each for each in ast.walk(tree) if isinstance(each, ast.stmt) and spans(each, line)]
    inner = max(statements, key=lambda each: each.lineno, default=None)
    if inner is None:
        return False
    later: list[ast.stmt] = []
    loops = around(tree, line)[1]
    if loops and isinstance(inner, ast.Assign) and isinstance(inner.targets[0], ast.Name):
        name = inner.targets[0].id
        later = [each for each in loops[-1].body if each.lineno > line and _holds(each, name)]
    return any(_is_mean(each) or _divides(each) for part in (inner, *later) for each in ast.walk(part))


@lru_cache(maxsize=512)
def loop_trains(file: str, line: int) -> bool:
    """Return whether the innermost loop around a line differentiates something."""
    scope, loops = around(syntax_of(file), line)
    return (
        not _lists_around(scope, line)
        and bool(loops)
        and any(isinstance(each, ast.Attribute) and each.attr == "backward" for each in ast.walk(loops[-1]))
    )


def _totals(loop: Loop, names: set[str], line: int) -> Iterator[str]:
    """Yield what a loop adds to, or appends to, of a name or of the statement of a line, as it is."""
    for each in ast.walk(loop):
        pair = _added(each)
        if pair is None:
            continue
        target, value = pair
        own = spans(each, line) or any(isinstance(e, ast.Name) and e.id in names for e in ast.walk(value))
        weighed = any(isinstance(e, ast.BinOp) and isinstance(e.op, ast.Mult) for e in ast.walk(value))
        if own and not weighed:
            yield ast.unparse(target)


def _added(node: ast.AST) -> tuple[ast.expr, ast.expr] | None:
    """Return what a node adds to, or appends to, and what; None where it does neither."""
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        return node.target, node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "append":
        return (node.func.value, node.args[0]) if len(node.args) == 1 else None
    return None


def _averages(node: ast.AST, total: str, loop: Loop) -> bool:
    """Return whether a node is a mean of a total over the passes of a loop."""
    if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div):
        return ast.unparse(node.target) == total and _counts(node.value, loop)
    if isinstance(node, ast.BinOp) and _divides(node):
        return _holds(node.left, total) and _counts(node.right, loop)
    return isinstance(node, ast.Call) and _is_mean(node.func) and _holds(node, total)


def _holds(node: ast.AST, total: str) -> bool:
    return any(
        isinstance(each, ast.Name | ast.Attribute | ast.Subscript) and ast.unparse(each) == total
        for each in ast.walk(node)
    )


def _counts(node: ast.expr, loop: Loop) -> bool:
    """Return whether an expression is the number of a loop's passes: a length, but for that of the data, or what is counted by ones."""
    text = ast.unparse(node)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("len", "max"):
        return "dataset" not in text
    counted = {
        ast.unparse(each.target)
        for each in ast.walk(loop)
        if isinstance(each, ast.AugAssign) and isinstance(each.value, ast.Constant) and each.value.value == 1
    }
    numbers = ast.unparse(loop.target) if isinstance(loop, ast.For | ast.AsyncFor) else ""
    first = numbers.strip("()").partition(",")[0]
    return text in counted or (bool(first) and text in (f"{first} + 1", f"({first} + 1)"))


def _divides(node: ast.AST) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div)


def _is_mean(node: ast.AST) -> bool:
    return last_name(node) in ("mean", "fmean", "average", "nanmean")
