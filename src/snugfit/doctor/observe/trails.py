"""The way of values through a script's source, backwards: which statements made what a line reads, and what those were made of."""

from __future__ import annotations

import ast
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from snugfit.doctor.observe.script_syntax import last_name, own_nodes, spans, syntax_of

MOST_STEPS, MOST_CALLS = 400, 4
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_ACTS = frozenset(
    [
        "forward",
        "predict",
        "encode",
        "decode",
        "score",
        "evaluate",
        "step",
        "fit",
        "run",
        "validate",
        "test",
        "train",
        "apply",
        "generate",
        "backward",
    ]
)
"""Methods of what computes, not of what holds rows."""
_NO_ROWS = frozenset(
    [
        "args",
        "cfg",
        "config",
        "conf",
        "opt",
        "hparams",
        "params",
        "device",
        "rng",
        "gen",
        "generator",
        "seed",
        "self",
        "cls",
        "np",
        "torch",
        "F",
        "nn",
    ]
)
_OPTIONS = frozenset(
    [
        "generator",
        "random_state",
        "seed",
        "device",
        "dtype",
        "collate_fn",
        "transform",
        "batch_size",
        "num_workers",
        "shuffle",
    ]
)
_FIRST_ALONE = {"DataLoader": ("sampler", "batch_sampler"), "random_split": ()}
"""Calls whose rows are the first argument, and what else says which."""
_ROW = ("__getitem__", "__iter__")
_FILLS = ("append", "extend", "insert", "update", "add")
Place = tuple[str, int]
"""A file and a line of it."""


def place_of(at: str, files: Mapping[str, str]) -> Place | None:
    """Return the place of a line as it is shown; None where that is of no file of the script's.

    Args:
        files: the script's files by the names under which they are shown.
    """
    file, _, line = at.rpartition(":")
    return (files[file], int(line)) if file in files and line.isdigit() else None


class Step(NamedTuple):
    """A statement that sets a name which what a line reads was made of: its file and line, the name, and the place of the step that led to it, -1 for none."""

    file: str
    line: int
    name: str
    before: int
    statement: ast.stmt

    @property
    def key(self) -> tuple[str, int, str]:
        """Return what tells this step apart from others, however one comes to it."""
        return self.file, self.line, self.name


@dataclass(frozen=True)
class _Frame:
    """A function, or a module, that a value is computed in, behind `depth` calls; `given` are the values of its parameters, where the call is known."""

    file: str
    scope: ast.AST
    given: dict[str, _Value] = field(default_factory=dict)
    outer: _Frame | None = None
    depth: int = 0


class _Value(NamedTuple):
    """An expression at a line of a frame, of which a part of this number is meant, or all of it (-1)."""

    node: ast.expr
    line: int
    frame: _Frame
    part: int = -1


class Trails:
    """The sources of a script, and the ways back from their lines."""

    def __init__(self, files: Iterable[str]) -> None:
        self._trees = {file: syntax_of(file) for file in files}
        self._rows = False
        self._functions: dict[str, list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]] = {}
        self._classes: dict[str, tuple[str, ast.ClassDef]] = {}
        self._stores: dict[str, list[tuple[str, ast.Assign]]] = {}
        self._calls: dict[str, list[tuple[str, ast.Call]]] = {}
        for file, tree in self._trees.items():
            for each in ast.walk(tree):
                if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                    self._functions.setdefault(each.name, []).append((file, each))
                elif isinstance(each, ast.ClassDef):
                    self._classes[each.name] = file, each
                elif isinstance(each, ast.Call):
                    self._calls.setdefault(last_name(each.func), []).append((file, each))
                elif isinstance(each, ast.Assign):
                    for target in each.targets:
                        for part in target.elts if isinstance(target, ast.Tuple) else [target]:
                            if isinstance(part, ast.Attribute):
                                self._stores.setdefault(part.attr, []).append((file, each))

    def tree(self, file: str) -> ast.Module:
        """Return the syntax of a file."""
        return self._trees[file]

    def functions(self, name: str = "") -> list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
        """Return the functions and methods of this name, or all, each with its file."""
        known = [self._functions.get(name, [])] if name else list(self._functions.values())
        return [each for some in known for each in some]

    def back(self, file: str, line: int, *, rows: bool = False) -> list[Step]:
        """Return the steps back from what a line of a file reads, the nearest first; `rows`: also through what a data set of the script's gives for a row."""
        self._rows = rows
        tree = self._trees.get(file)
        statements = [] if tree is None else statements_at(tree, line)
        if not statements:
            return []
        steps: list[Step] = []
        seen: set[tuple[str, int, str, int]] = set()
        frame = self._frame_of(file, statements[0].lineno)
        todo = deque((value, -1) for each in statements for value in _read_by(each, frame))
        while todo and len(steps) < MOST_STEPS:
            value, before = todo.popleft()
            for name, made in self._definitions(value):
                step = Step(
                    made.frame.file,
                    made.line,
                    name,
                    before,
                    _statement(self._trees[made.frame.file], made.line),
                )
                if (*step.key, made.part) in seen:
                    continue
                seen.add((*step.key, made.part))
                steps.append(step)
                todo += [(each, len(steps) - 1) for each in self._made_of(made)]
        return steps

    def is_under(self, file: str, line: int, condition: re.Pattern[str]) -> bool:
        """Return whether a line stands under a condition that has one of these words."""
        tests = (
            each for each in ast.walk(self._trees[file]) if isinstance(each, ast.If) and spans(each, line)
        )
        return any(each.test.lineno != line and condition.search(ast.unparse(each.test)) for each in tests)

    def has_under(self, condition: re.Pattern[str], is_sought: Callable[[ast.AST], bool]) -> bool:
        """Return whether any statement under a condition that has one of these words is one that is sought."""
        conditions = (
            each for tree in self._trees.values() for each in _statements(tree) if isinstance(each, ast.If)
        )
        return any(
            condition.search(ast.unparse(each.test)) and any(map(is_sought, each.body)) for each in conditions
        )

    def gives_rows(self, file: str, line: int) -> bool:
        """Return whether a line stands in what a data set gives for a row: of a table, it is its other columns that were to be left out."""
        nodes = ast.walk(self._trees[file])
        return any(isinstance(e, ast.FunctionDef) and e.name in _ROW and spans(e, line) for e in nodes)

    def called_in(self, statement: ast.stmt) -> list[ast.AST]:
        """Return the functions of the script's own that a statement calls by their names."""
        names = [last_name(each.func) for each in ast.walk(statement) if isinstance(each, ast.Call)]
        return [scope for name in names for _, scope in self._functions.get(name, []) if name not in _ACTS]

    def _frame_of(self, file: str, line: int) -> _Frame:
        """Return the frame of the innermost function around a line, of which no call is known."""
        frame = _Frame(file, self._trees[file])
        scopes = [e for e in ast.walk(frame.scope) if isinstance(e, _Function) and spans(e, line)]
        for scope in sorted(scopes, key=lambda each: each.lineno):
            if not isinstance(scope, ast.Lambda) and line != scope.lineno:
                frame = _Frame(file, scope, {}, frame)
        return frame

    def _definitions(self, value: _Value) -> Iterator[tuple[str, _Value]]:
        """Yield the names that an expression reads rows from, each with the value that a statement gives it."""
        node, frame = value.node, value.frame
        if isinstance(node, ast.Attribute):
            for file, each in self._stores.get(node.attr, []):
                for stored, part in _parts(each.targets[0], each.value, node.attr):
                    yield node.attr, _Value(stored, each.lineno, self._frame_of(file, each.lineno), part)
            return
        if not isinstance(node, ast.Name) or node.id in _NO_ROWS:
            return
        while frame is not None:
            known = list(_bindings(frame.scope, node.id, value.line if frame is value.frame else 10**9))
            for made, part, line in known:
                yield node.id, _Value(made, line, frame, value.part if part < 0 else part)
            if known:
                return
            if node.id in frame.given:
                given = frame.given[node.id]
                yield f"{node.id}={ast.unparse(given.node)}", given
                return
            if isinstance(frame.scope, _Function) and node.id in _parameters(frame.scope):
                yield from self._arguments(frame, node.id)
                return
            if frame.outer is None:
                break
            frame = frame.outer
        for file, tree in self._trees.items():  # a name of another module of the script's
            if file != frame.file:
                for made, part, line in _bindings(tree, node.id, 10**9):
                    yield node.id, _Value(made, line, _Frame(file, tree), part)

    def _arguments(self, frame: _Frame, name: str) -> Iterator[tuple[str, _Value]]:
        """Yield what the calls of a function give for a parameter."""
        scope = frame.scope
        if not isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
            return
        called = scope.name
        owner = next((c for _, c in self._classes.values() if scope in c.body), None)
        if called == "__init__" and owner is not None:
            called = owner.name
        elif called == "forward" and owner is not None:
            return  # of a model, which is called by any name
        for file, call in self._calls.get(called, []):
            given = _bound(scope, call, method=owner is not None).get(name)
            if given is not None:
                yield (
                    f"{name}={ast.unparse(given)}",
                    _Value(given, call.lineno, self._frame_of(file, call.lineno)),
                )

    def _made_of(self, value: _Value) -> Iterator[_Value]:
        """Yield the names, as values, that an expression takes rows from; through the functions and the data sets of the script's own."""
        node, frame = value.node, value.frame
        if isinstance(node, ast.Tuple | ast.List) and 0 <= value.part < len(node.elts):
            yield from self._made_of(_Value(node.elts[value.part], value.line, frame))
            return
        if isinstance(node, ast.Call):
            name = last_name(node.func)
            if name == "enumerate" and node.args:
                if value.part != 0:  # the count
                    yield from self._made_of(_Value(node.args[0], value.line, frame))
                return
            if name == "zip" and 0 <= value.part < len(node.args):
                yield from self._made_of(_Value(node.args[value.part], value.line, frame))
                return
            if name == "DataLoader" and node.args:
                yield from self._made_of(_Value(node.args[0], value.line, frame, value.part))
            inside = self._results(node, value) or self._row_of(node, value)
            if inside:
                for each in inside:
                    yield from self._made_of(each)
                return
        for name_or_part in rows_in(node):
            yield _Value(name_or_part, value.line, frame, value.part)

    def _row_of(self, call: ast.Call, value: _Value) -> list[_Value]:
        """Return what a data set of the script's own gives for a row, where that is asked for."""
        file, made = self._classes.get(last_name(call.func), ("", None))
        if not self._rows or made is None or value.frame.depth >= MOST_CALLS:
            return []
        getter = next((e for e in made.body if isinstance(e, ast.FunctionDef) and e.name in _ROW), None)
        if getter is None:
            return []
        frame = _Frame(file, getter, {}, _Frame(file, self._trees[file]), value.frame.depth + 1)
        given = [each for each in own_nodes(getter) if isinstance(each, ast.Return | ast.Yield)]
        return [_Value(e.value, e.lineno, frame, value.part) for e in given if e.value is not None]

    def _results(self, call: ast.Call, value: _Value) -> list[_Value]:
        """Return what a function of the script's own gives for a call of it; nothing for others, and for methods that several classes have."""
        name = last_name(call.func)
        known = self._functions.get(name, [])
        scope: _Function | None = None
        file = value.frame.file
        if len(known) == 1:
            file, scope = known[0]
        elif not known and isinstance(call.func, ast.Name):
            for made, _, _ in _bindings(value.frame.scope, name, 10**9):
                scope = made if isinstance(made, ast.Lambda) else scope
        if scope is None or value.frame.depth >= MOST_CALLS:
            return []
        method = any(scope in each.body for _, each in self._classes.values())
        given = {
            parameter: _Value(each, call.lineno, value.frame)
            for parameter, each in _bound(scope, call, method=method).items()
        }
        frame = _Frame(file, scope, given, _Frame(file, self._trees[file]), value.frame.depth + 1)
        if isinstance(scope, ast.Lambda):
            return [_Value(scope.body, value.line, frame, value.part)]
        returned = [each for each in own_nodes(scope) if isinstance(each, ast.Return | ast.Yield)]
        return [
            _Value(each.value, each.lineno, frame, value.part) for each in returned if each.value is not None
        ]


def rows_in(node: ast.AST) -> Iterator[ast.Name | ast.Attribute]:
    """Yield the names and attributes that an expression takes rows from: not what it calls, nor options."""
    if isinstance(node, ast.Call):
        name = last_name(node.func)
        base = node.func.value if isinstance(node.func, ast.Attribute) else None
        if base is not None and not (isinstance(base, ast.Name | ast.Attribute) and name in _ACTS):
            yield from rows_in(base)
        options = _FIRST_ALONE.get(name)
        yield from (
            each for part in (node.args[:1] if options is not None else node.args) for each in rows_in(part)
        )
        for keyword in node.keywords:
            if keyword.arg not in _OPTIONS and (options is None or keyword.arg in (*options, "dataset")):
                yield from rows_in(keyword.value)
    elif isinstance(node, ast.Name):
        if isinstance(node.ctx, ast.Load) and node.id not in _NO_ROWS:
            yield node
    elif isinstance(node, ast.Attribute):
        root = ast.unparse(node).partition(".")[0]
        if root == "self" and isinstance(node.value, ast.Name):
            yield node
        elif root not in _NO_ROWS:
            yield from rows_in(node.value)
    elif isinstance(node, ast.Lambda):
        return
    else:
        for each in ast.iter_child_nodes(node):
            yield from rows_in(each)


@lru_cache(maxsize=64)
def _statements(tree: ast.AST) -> tuple[ast.stmt, ...]:
    return tuple(each for each in ast.walk(tree) if isinstance(each, ast.stmt))


def statements_at(tree: ast.AST, line: int) -> list[ast.stmt]:
    """Return the innermost statements around a line."""
    around = [each for each in _statements(tree) if spans(each, line)]
    places = {id(each) for each in around}
    return [each for each in around if not any(p is not each and id(p) in places for p in ast.walk(each))]


def _statement(tree: ast.AST, line: int) -> ast.stmt:
    return next(iter(statements_at(tree, line)), ast.Pass())


def _read_by(statement: ast.stmt, frame: _Frame) -> list[_Value]:
    """Return the names that a statement reads rows from; of a loop or a condition those of its head alone."""
    heads: list[ast.AST] = [statement]
    if isinstance(statement, ast.For | ast.AsyncFor):
        heads = [statement.iter]
    elif isinstance(statement, ast.If | ast.While):
        heads = [statement.test]
    elif isinstance(statement, ast.With | ast.AsyncWith):
        heads = [each.context_expr for each in statement.items]
    return [_Value(each, statement.lineno, frame) for head in heads for each in rows_in(head)]


def _bindings(scope: ast.AST, name: str, line: int) -> list[tuple[ast.expr, int, int]]:
    """Return the value that a scope gives a name last before a line, with which part of it is meant and the line, and what is put into it later.

    In a loop, where nothing does before the line, it is what comes behind it.
    """
    set_: list[tuple[ast.expr, int, int]] = []
    filled: list[tuple[ast.expr, int, int]] = []
    for each in own_nodes(scope):
        if isinstance(each, ast.Assign):
            for target in each.targets:
                if isinstance(target, ast.Attribute):
                    continue  # self.rows = rows sets no name
                into = filled if isinstance(target, ast.Subscript) else set_
                into += [(value, part, each.lineno) for value, part in _parts(target, each.value, name)]
        elif isinstance(each, ast.AnnAssign | ast.AugAssign | ast.NamedExpr):
            if isinstance(each.target, ast.Name) and each.target.id == name and each.value is not None:
                (filled if isinstance(each, ast.AugAssign) else set_).append((each.value, -1, each.lineno))
        elif isinstance(each, ast.For | ast.AsyncFor):
            set_ += [(value, part, each.iter.lineno) for value, part in _parts(each.target, each.iter, name)]
        elif isinstance(each, ast.comprehension):
            near = [(value, part, each.iter.lineno) for value, part in _parts(each.target, each.iter, name)]
            if near and any(spans(own, near[0][2]) for own in statements_at(scope, line)):
                return near  # its names are known in its own expression alone
        elif isinstance(each, ast.Call) and each.args and _is_filled_by(each.func, name):
            filled.append((each.args[-1], -1, each.lineno))
    set_.sort(key=lambda each: each[2])
    earlier = [each for each in set_ if each[2] < line]
    last = earlier[-1:] or set_
    return [*last, *(each for each in filled if not last or each[2] >= last[0][2])]


def _is_filled_by(function: ast.expr, name: str) -> bool:
    """Return whether a call of this puts something into what a name has."""
    owner = function.value if isinstance(function, ast.Attribute) and function.attr in _FILLS else None
    return isinstance(owner, ast.Name) and owner.id == name


def _parts(target: ast.expr, value: ast.expr, name: str) -> Iterator[tuple[ast.expr, int]]:
    """Yield the values that an assignment gives a name or an attribute of this name, with which part of them it is."""
    if isinstance(target, ast.Tuple | ast.List):
        for place, each in enumerate(target.elts):
            if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == len(target.elts):
                yield from _parts(each, value.elts[place], name)
            elif last_name(each) == name:
                yield value, place
            else:
                inner = value
                if isinstance(value, ast.Call) and last_name(value.func) == "enumerate" and place == 1:
                    inner = value.args[0]
                yield from _parts(each, inner, name)
    elif last_name(target.value if isinstance(target, ast.Subscript) else target) == name:
        yield value, -1


def _parameters(scope: _Function) -> list[str]:
    return [each.arg for each in (*scope.args.posonlyargs, *scope.args.args, *scope.args.kwonlyargs)]


def _bound(scope: _Function, call: ast.Call, *, method: bool) -> dict[str, ast.expr]:
    """Return what a call gives for the parameters of a function."""
    names = _parameters(scope)
    if method and names[:1] in (["self"], ["cls"]):
        names = names[1:]
    given = dict(zip(names, call.args, strict=False))
    given |= {each.arg: each.value for each in call.keywords if each.arg is not None}
    return {name: each for name, each in given.items() if not isinstance(each, ast.Starred)}
