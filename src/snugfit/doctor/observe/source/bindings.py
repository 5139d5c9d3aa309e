"""Names in a script's source: the statements that bind them, the parts of statements that read them, and arguments by parameter."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import lru_cache

from snugfit.doctor.observe.source.script_syntax import last_name, own_nodes, spans

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_FILLS = ("append", "extend", "insert", "update", "add")


@lru_cache(maxsize=64)
def all_statements(tree: ast.AST) -> tuple[ast.stmt, ...]:
    """Return the statements in a tree."""
    return tuple(each for each in ast.walk(tree) if isinstance(each, ast.stmt))


@lru_cache(maxsize=4096)
def statements_at(tree: ast.AST, line: int) -> list[ast.stmt]:
    """Return the innermost statements around a line."""
    around = [each for each in all_statements(tree) if spans(each, line)]
    places = {id(each) for each in around}
    return [each for each in around if not any(p is not each and id(p) in places for p in ast.walk(each))]


def statement_at(tree: ast.AST, line: int) -> ast.stmt:
    """Return the innermost statement around a line."""
    return next(iter(statements_at(tree, line)), ast.Pass())


def heads_of(statement: ast.stmt) -> list[ast.AST]:
    """Return what a statement reads; of a loop or a condition that of its head alone."""
    if isinstance(statement, ast.For | ast.AsyncFor):
        return [statement.iter]
    if isinstance(statement, ast.If | ast.While):
        return [statement.test]
    if isinstance(statement, ast.With | ast.AsyncWith):
        return [each.context_expr for each in statement.items]
    return [statement]


def parts_of(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and what is in it, but for what is computed later."""
    yield node
    for each in ast.iter_child_nodes(node):
        if not isinstance(each, ast.Lambda | ast.FunctionDef | ast.ClassDef):
            yield from parts_of(each)


def bindings_of(scope: ast.AST, name: str, line: int) -> list[tuple[ast.expr, int, int]]:
    """Return the value that a scope gives a name last before a line, with which part of it is meant and the line, and what is put into it later.

    In a loop, where nothing does before the line, it is what comes behind it.
    """
    set_: list[tuple[ast.expr, int, int]] = []
    filled: list[tuple[ast.expr, int, int]] = []
    for each in own_nodes(scope):
        if isinstance(each, ast.Assign):
            for target in each.targets:
                into = filled if isinstance(target, ast.Subscript) else set_
                into += [(value, part, each.lineno) for value, part in parts_set(target, each.value, name)]
        elif isinstance(each, ast.AnnAssign | ast.AugAssign | ast.NamedExpr):
            if isinstance(each.target, ast.Name) and each.target.id == name and each.value is not None:
                (filled if isinstance(each, ast.AugAssign) else set_).append((each.value, -1, each.lineno))
        elif isinstance(each, ast.For | ast.AsyncFor):
            set_ += [
                (value, part, each.iter.lineno) for value, part in parts_set(each.target, each.iter, name)
            ]
        elif isinstance(each, ast.comprehension):
            near = [
                (value, part, each.iter.lineno) for value, part in parts_set(each.target, each.iter, name)
            ]
            if near and any(spans(own, near[0][2]) for own in statements_at(scope, line)):
                return near  # its names are known in its own expression alone
        elif isinstance(each, ast.Call) and each.args and _is_filled_by(each.func, name):
            filled.append((each.args[-1], -1, each.lineno))
    set_.sort(key=lambda each: each[2])
    earlier = [each for each in set_ if each[2] < line]
    last = earlier[-1:] or set_
    return [*reversed([each for each in filled if not last or each[2] >= last[0][2]]), *last]


def _is_filled_by(function: ast.expr, name: str) -> bool:
    """Return whether a call of this puts something into what a name has."""
    owner = function.value if isinstance(function, ast.Attribute) and function.attr in _FILLS else None
    return isinstance(owner, ast.Name) and owner.id == name


def parts_set(
    target: ast.expr, value: ast.expr, name: str, kind: type[ast.Name | ast.Attribute] = ast.Name
) -> Iterator[tuple[ast.expr, int]]:
    """Yield the values that an assignment gives a name, or an attribute, of this name, with which part of them it is: `self.rows = rows` sets no name."""
    if isinstance(target, ast.Tuple | ast.List):
        for place, each in enumerate(target.elts):
            if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts):
                yield from parts_set(each, value.elts[place], name, kind)
            elif isinstance(each, kind) and last_name(each) == name:
                yield value, place
            else:
                inner = value
                if isinstance(value, ast.Call) and last_name(value.func) == "enumerate" and place == 1:
                    inner = value.args[0]
                yield from parts_set(each, inner, name, kind)
    else:
        whole = target.value if isinstance(target, ast.Subscript) else target
        if isinstance(whole, kind) and last_name(whole) == name:
            yield value, -1


def parameters_of(scope: Function) -> list[str]:
    """Return the names of a function's parameters."""
    return [each.arg for each in (*scope.args.posonlyargs, *scope.args.args, *scope.args.kwonlyargs)]


def bound_by(scope: Function, call: ast.Call, *, method: bool) -> dict[str, tuple[ast.expr, int]]:
    """Return what a call gives for the parameters of a function, each with the part that is meant of it, as of `*batch`, or -1 for all."""
    names = parameters_of(scope)
    if method and names[:1] in (["self"], ["cls"]):
        names = names[1:]
    given: dict[str, tuple[ast.expr, int]] = {}
    for place, (name, each) in enumerate(zip(names, call.args, strict=False)):
        if isinstance(each, ast.Starred):
            given |= {later: (each.value, part) for part, later in enumerate(names[place:])}
            break
        given[name] = each, -1
    return given | {each.arg: (each.value, -1) for each in call.keywords if each.arg is not None}
