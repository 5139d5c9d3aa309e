"""Sums of scores over the batches of a loop that come out wrong, as a script's source shows: never set back, ended with the first batch, taken of the last one, divided by rows where they are means."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple, TypeGuard

from snugfit.doctor.observe.source.hits_of_last import (
    hits_by_last_batch,
    hits_of_last_batch,
    loss_of_last_batch,
    never_added_to,
)
from snugfit.doctor.observe.source.listed_means import averaged_means
from snugfit.doctor.observe.source.script_syntax import names_in, names_set_by, own_nodes, spans, syntax_of
from snugfit.doctor.observe.source.undivided_sums import UndividedSums

_LOADER = re.compile(r"load|batches|(^|_)(dl|iter|iterator)($|_)|enumerate\(|tqdm\(", re.IGNORECASE)
_ROWS = re.compile(r"len\(\w*(\.\w+)*\.dataset\)|len\(\w*(dataset|data_?set|_set|_ds|_data)\)", re.IGNORECASE)
_COUNT = re.compile(r"len\(\w+(\[\w+\])?\)|\w+(\[\w+\])?\.(size\(0\)|shape\[0\])|(batch_?size|bs|bsz|b)")
"""The rows of a batch, as they are counted."""
_STEPS = re.compile(r"step|count|seen|iter|epoch|total_?time|time", re.IGNORECASE)


class Sum(NamedTuple):
    """A sum over batches: the line at which it goes wrong, its name, the first and the last line of its loop, and how."""

    line: int
    name: str
    first: int
    last: int
    way: str


NEVER_BACK, FIRST_ALONE, MEANS_BY_ROWS = "never set back", "the first batch alone", "means divided by rows"
LAST_BY_ALL = "hits of the last batch divided by all rows"
ALL_BY_LAST = "hits of all batches divided by the rows of the last"
LOSS_BY_ALL = "loss of the last batch divided by all"
MEANS_IN_LISTS = "means of batches in a list"
NEVER_ADDED = "never added to"
ROWS_BY_BATCHES = "a sum over rows divided by batches"
SUM_BESIDE_MEAN = "a sum beside the mean of the training"


@lru_cache(maxsize=64)
def wrong_sums(file: str) -> tuple[Sum, ...]:
    """Return the sums of a file that come out wrong, each once."""
    tree = syntax_of(file)
    scopes: list[ast.Module | ast.FunctionDef] = [tree]
    scopes += [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)]
    undivided = [
        Sum(line, name, loop.lineno, loop.end_lineno or loop.lineno, SUM_BESIDE_MEAN)
        for line, name, loop in UndividedSums(tree)
    ]
    return tuple(dict.fromkeys([*(each for scope in scopes for each in _of_scope(scope)), *undivided]))


def _of_scope(scope: ast.Module | ast.FunctionDef) -> Iterator[Sum]:
    for loop in (each for each in own_nodes(scope) if isinstance(each, ast.For)):
        inner = [each for each in ast.walk(loop) if isinstance(each, ast.For) and each is not loop]
        if _LOADER.search(ast.unparse(loop.iter)):
            yield from _ended_at_once(loop)
            yield from _means_by_rows(scope, loop)
            yield from _rows_by_batches(scope, loop)
            for seen, way in (
                (hits_of_last_batch(scope, loop), LAST_BY_ALL),
                (hits_by_last_batch(scope, loop), ALL_BY_LAST),
                (loss_of_last_batch(scope, loop), LOSS_BY_ALL),
                (never_added_to(scope, loop), NEVER_ADDED),
                (averaged_means(scope, loop), MEANS_IN_LISTS),
            ):
                if seen is not None:
                    yield Sum(*seen, loop.lineno, loop.end_lineno or loop.lineno, way)
        for part in inner:
            if any(part is each for each in loop.body) and _LOADER.search(ast.unparse(part.iter)):
                yield from _never_back(scope, loop, part)


def _sums_of(loop: ast.For) -> dict[str, ast.AugAssign]:
    """Return the statements of a loop that add to a name, by the name."""
    return {
        each.target.id: each
        for each in ast.walk(loop)
        if isinstance(each, ast.AugAssign)
        and isinstance(each.op, ast.Add)
        and isinstance(each.target, ast.Name)
    }


def _ended_at_once(loop: ast.For) -> Iterator[Sum]:
    """Yield a sum over batches whose loop returns it with its first pass."""
    returned = next(
        (each for each in loop.body if isinstance(each, ast.Return) and each.value is not None), None
    )
    if returned is None or returned.value is None:
        return
    for name in sorted(_sums_of(loop).keys() & names_in(returned.value)):
        yield Sum(returned.lineno, name, loop.lineno, loop.end_lineno or loop.lineno, FIRST_ALONE)
        return


def _means_by_rows(scope: ast.AST, loop: ast.For) -> Iterator[Sum]:
    """Yield a sum of numbers of batches, none of which is multiplied by its rows, that is divided by the rows of a data set."""
    end = loop.end_lineno or loop.lineno
    for name, added in _sums_of(loop).items():
        plain = re.fullmatch(r"(\w*loss\w*)(\.data)?\.item\(\)", ast.unparse(added.value))
        if plain and _is_weighed(loop, plain.group(1)):
            continue
        for each in ast.walk(scope) if plain else ():
            if isinstance(each, ast.BinOp):
                over, by = each.left, each.right
            elif isinstance(each, ast.AugAssign):
                over, by = each.target, each.value
            else:
                continue
            behind = isinstance(each.op, ast.Div) and each.lineno > end
            if behind and ast.unparse(over) == name and _ROWS.fullmatch(ast.unparse(by)):
                yield Sum(each.lineno, name, loop.lineno, end, MEANS_BY_ROWS)
                return


def _rows_by_batches(scope: ast.AST, loop: ast.For) -> Iterator[Sum]:
    """Yield a sum of means, each multiplied by the rows of its batch, that is divided by the batches of the loop's loader and by nothing else."""
    end, over = loop.end_lineno or loop.lineno, loop.iter
    while isinstance(over, ast.Call) and over.args and isinstance(over.func, ast.Name | ast.Attribute):
        over = over.args[0]  # enumerate, tqdm
    batches = f"len({ast.unparse(over)})"
    for name, added in _sums_of(loop).items():
        value = added.value
        if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Mult):
            continue
        if not any(_COUNT.fullmatch(ast.unparse(each)) for each in (value.left, value.right)):
            continue
        divided = [each for each in ast.walk(scope) if _is_quotient_of(each, name)]
        further = {id(each.left) for each in ast.walk(scope) if isinstance(each, ast.BinOp)}
        for each in divided:
            by = each.right if isinstance(each, ast.BinOp) else each.value
            alone = isinstance(each, ast.AugAssign) or id(each) not in further
            if each.lineno > end and alone and len(divided) == 1 and ast.unparse(by) == batches:
                yield Sum(each.lineno, name, loop.lineno, end, ROWS_BY_BATCHES)


def _is_quotient_of(node: ast.AST, name: str) -> TypeGuard[ast.BinOp | ast.AugAssign]:
    """Return whether a node divides what has this name."""
    if isinstance(node, ast.AugAssign):
        return isinstance(node.op, ast.Div) and ast.unparse(node.target) == name
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and ast.unparse(node.left) == name


def _is_weighed(loop: ast.For, name: str) -> bool:
    """Return whether a loop multiplies a loss by something before it sums it up."""
    sets = [each for each in ast.walk(loop) if isinstance(each, ast.Assign) and name in names_set_by(each)]
    products = [
        each for each in ast.walk(loop) if isinstance(each, ast.AugAssign) and isinstance(each.op, ast.Mult)
    ]
    return any(ast.unparse(each.target) == name for each in products) or any(
        isinstance(part, ast.BinOp) and isinstance(part.op, ast.Mult)
        for each in sets
        for part in ast.walk(each.value)
    )


def _never_back(scope: ast.Module | ast.FunctionDef, epochs: ast.For, batches: ast.For) -> Iterator[Sum]:
    """Yield a sum over the batches of an epoch that begins before the first epoch alone, and is divided by what one epoch has."""
    for name in _sums_of(batches):
        sets = [
            each for each in ast.walk(epochs) if isinstance(each, ast.Assign) and name in names_set_by(each)
        ]
        begins = [
            each
            for each in ast.walk(scope)
            if isinstance(each, ast.Assign)
            and name in names_set_by(each)
            and isinstance(each.value, ast.Constant | ast.Tuple)
            and each.lineno < epochs.lineno
        ]
        if sets or not begins or _STEPS.search(name):
            continue
        for each in ast.walk(epochs):
            if (
                not isinstance(each, ast.BinOp)
                or not isinstance(each.op, ast.Div)
                or spans(batches, each.lineno)
            ):
                continue
            # a count that is never set back either gives the mean over all epochs, which may be meant
            if ast.unparse(each.left) == name and re.fullmatch(r"len\([\w.]+\)", ast.unparse(each.right)):
                yield Sum(begins[-1].lineno, name, batches.lineno, batches.end_lineno or 0, NEVER_BACK)
                return
