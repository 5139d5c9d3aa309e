"""Sums of an evaluation's losses that are shown beside the mean of the training's, as a script's source shows."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from snugfit.doctor.observe.source.script_syntax import last_name, names_in, own_nodes

_LEARNS = frozenset(["backward", "manual_backward"])
_LOADER = re.compile(r"load|batches|(^|_|\.)(dl|iter|iterator)($|_|\W)", re.IGNORECASE)
_LOSS = re.compile(r"loss|criterion|cross_entropy|nll|mse|bce|err", re.IGNORECASE)
_Scope = ast.Module | ast.FunctionDef


class _Total(NamedTuple):
    """A statement that adds up the losses of a loop, which nothing divides in its function, with the loop, and where the function returns it: -1 alone, None never."""

    added: ast.AugAssign
    name: str
    loop: ast.For
    place: int | None


class UndividedSums:
    """The functions of a file, what they add up over batches, and what they show beside each other."""

    def __init__(self, tree: ast.Module) -> None:
        functions = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef)]
        names = [each.name for each in functions]
        self._scopes: list[_Scope] = [tree, *functions]
        self._functions = {each.name: each for each in functions if names.count(each.name) == 1}

    def __iter__(self) -> Iterator[tuple[int, str, ast.For]]:
        """Yield each such sum once: the line that adds to it, its name, and its loop."""
        totals = {id(scope): list(self._totals(scope)) for scope in self._scopes}
        given = {
            name: [each for each in totals[id(scope)] if each.place is not None]
            for name, scope in self._functions.items()
        }
        seen: set[int] = set()
        for scope in self._scopes:
            sums = self._sums_in(scope, totals[id(scope)], given)
            means = self._means_in(scope) if sums else set()
            for shown in _shown(scope) if means else ():
                texts = {ast.unparse(each) for each in ast.walk(shown) if isinstance(each, ast.expr)}
                for text in sorted(texts & sums.keys()) if texts & means else ():
                    total = sums[text]
                    if total.added.lineno not in seen:
                        seen.add(total.added.lineno)
                        yield total.added.lineno, total.name, total.loop

    def _learns(self, node: ast.AST) -> bool:
        """Return whether something differentiates, or calls a function of the file that does."""
        called = {last_name(each.func) for each in ast.walk(node) if isinstance(each, ast.Call)}
        inner = [self._functions[each] for each in called & self._functions.keys()]
        return bool(called & _LEARNS) or any(
            isinstance(each, ast.Call) and last_name(each.func) in _LEARNS
            for scope in inner
            for each in own_nodes(scope)
        )

    def _totals(self, scope: _Scope) -> Iterator[_Total]:
        """Yield the sums of losses over the batches of a loop that learns nothing, of one function, in which nothing divides them."""
        for loop in (each for each in own_nodes(scope) if isinstance(each, ast.For)):
            if not _LOADER.search(ast.unparse(loop.iter)) or self._learns(loop):
                continue
            for each in ast.walk(loop):
                if not isinstance(each, ast.AugAssign) or not isinstance(each.op, ast.Add):
                    continue
                plain = not any(isinstance(part, ast.BinOp) for part in _outside_calls(each.value))
                name = last_name(each.target) if isinstance(each.target, ast.Name) else ""
                if name and plain and _LOSS.search(ast.unparse(each.value)) and not _is_scaled(scope, name):
                    yield _Total(each, name, loop, _returned_at(scope, name))

    def _sums_in(self, scope: _Scope, own: list[_Total], given: dict[str, list[_Total]]) -> dict[str, _Total]:
        """Return the sums that a function has, or gets from others, by the text that reads them."""
        sums = {each.name: each for each in own}
        for node in own_nodes(scope):
            call = node.value if isinstance(node, ast.Assign) else node
            for total in given.get(last_name(call.func), []) if isinstance(call, ast.Call) else ():
                if isinstance(node, ast.Assign):
                    name = _name_at(node.targets[0], total.place)
                    if name and not _is_scaled(scope, name):
                        sums[name] = total
                elif total.place == -1 and not _is_scaled(scope, ast.unparse(node)):
                    sums[ast.unparse(node)] = total
        return sums

    def _means_in(self, scope: _Scope) -> set[str]:
        """Return the texts that read, in a function, losses of a training divided by how many there are."""
        trained = self._trained_names(scope)
        quotients = [
            each for each in own_nodes(scope) if isinstance(each, ast.BinOp) and isinstance(each.op, ast.Div)
        ]
        means = {ast.unparse(each) for each in quotients if last_name(each.left) in trained}
        for node in own_nodes(scope):
            if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div):
                means |= names_in(node.target) & trained
            elif isinstance(node, ast.Assign):
                name = _name_at(node.targets[0], -1)
                parts = {ast.unparse(each) for each in ast.walk(node.value) if isinstance(each, ast.expr)}
                means |= {name} if name and parts & means else set()
                means |= {*self._means_given(node.value, node.targets[0])}
        return means

    def _trained_names(self, scope: _Scope) -> set[str]:
        """Return the names to which a loop that learns adds losses."""
        return {
            last_name(each.target)
            for loop in own_nodes(scope)
            if isinstance(loop, ast.For) and self._learns(loop)
            for each in ast.walk(loop)
            if isinstance(each, ast.AugAssign) and isinstance(each.op, ast.Add)
        } - {""}

    def _means_given(self, value: ast.expr, target: ast.expr) -> Iterator[str]:
        """Yield the name that gets the mean of a training which a function of the file returns."""
        called = self._functions.get(last_name(value.func)) if isinstance(value, ast.Call) else None
        if called is None:
            return
        trained = self._trained_names(called)
        for each in own_nodes(called):
            if not isinstance(each, ast.Return) or each.value is None:
                continue
            parts = each.value.elts if isinstance(each.value, ast.Tuple) else [each.value]
            for place, part in enumerate(parts):
                divided = isinstance(part, ast.BinOp) and isinstance(part.op, ast.Div)
                if divided and last_name(part.left) in trained:  # type: ignore[attr-defined]
                    name = _name_at(target, place if len(parts) > 1 else -1)
                    yield from [name] if name else []


def _outside_calls(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what an expression is made of, but for what its calls are given."""
    yield node
    if isinstance(node, ast.Call):
        yield from _outside_calls(node.func) if isinstance(node.func, ast.Attribute) else ()
        yield from (
            part for each in node.args if last_name(node.func) == "float" for part in _outside_calls(each)
        )
        return
    for each in ast.iter_child_nodes(node):
        yield from _outside_calls(each)


def _is_scaled(scope: ast.AST, text: str) -> bool:
    """Return whether a function divides or multiplies something, or changes it otherwise than by adding to it."""
    for each in ast.walk(scope):
        if isinstance(each, ast.BinOp) and isinstance(each.op, ast.Div | ast.Mult):
            scaled = any(ast.unparse(part) == text for part in ast.walk(each) if isinstance(part, ast.expr))
        else:
            changed = isinstance(each, ast.AugAssign) and not isinstance(each.op, ast.Add)
            scaled = changed and ast.unparse(each.target) == text  # type: ignore[attr-defined]
        if scaled:
            return True
    return False


def _returned_at(scope: ast.AST, name: str) -> int | None:
    """Return the place at which a function returns a name, -1 where that is all that it returns; None where it does not."""
    for each in own_nodes(scope):
        if isinstance(each, ast.Return) and isinstance(each.value, ast.Name) and each.value.id == name:
            return -1
        if isinstance(each, ast.Return) and isinstance(each.value, ast.Tuple):
            for place, part in enumerate(each.value.elts):
                if isinstance(part, ast.Name) and part.id == name:
                    return place
    return None


def _name_at(target: ast.expr, place: int | None) -> str:
    """Return the name that gets what stands at a place of several values, or all of one (-1); "" where none does."""
    if place == -1:
        return target.id if isinstance(target, ast.Name) else ""
    if isinstance(target, ast.Tuple) and place is not None and place < len(target.elts):
        return _name_at(target.elts[place], -1)
    return ""


def _shown(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield what a function prints or logs in one call."""
    for each in own_nodes(scope):
        if isinstance(each, ast.Expr) and isinstance(each.value, ast.Call):
            yield each.value
