"""The way of values through a script's source, backwards: which statements made what a line reads, and what those were made of."""

from __future__ import annotations

import ast
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from snugfit.doctor.observe.source.bindings import (
    Function,
    all_statements,
    bindings_of,
    bound_by,
    heads_of,
    parameters_of,
    parts_of,
    parts_set,
    statement_at,
    statements_at,
)
from snugfit.doctor.observe.source.script_syntax import (
    around,
    last_name,
    names_set_by,
    own_nodes,
    reads,
    spans,
    syntax_of,
)

MOST_STEPS, MOST_CALLS, MOST_HOPS, MOST_LOOKS = 400, 4, 24, 8_000
"""Steps of a way, calls that it goes into, statements back to the class of a model, and names that are looked up for one way."""
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
_NO_VALUES = frozenset(["self", "cls", "np", "torch", "F", "nn"])
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
_CALLED = ("forward", "__call__")
_IN_PARTS = ("zip", "TensorDataset")
_ROW = ("__getitem__", "__iter__")
Place = tuple[str, int]
"""A file and a line of it."""


def place_of(at: str, files: Mapping[str, str]) -> Place | None:
    """Return the place of a line as it is shown; None where that is of no file of the script's.

    Args:
        files: the script's files by the names under which they are shown.
    """
    file, _, line = at.rpartition(":")
    return (files[file], int(line)) if file in files and line.isdigit() else None


def callers_by_line(
    callers: Mapping[str, Sequence[str]], files: Mapping[str, str]
) -> dict[Place, list[Place]]:
    """Return the lines that were seen to call the script's functions, by the first line of each.

    Args:
        callers: the same as they are shown.
        files: the script's files by the names under which they are shown.
    """
    lines = {
        place_of(called, files): [place_of(each, files) for each in by] for called, by in callers.items()
    }
    return {called: [each for each in by if each] for called, by in lines.items() if called}


class Step(NamedTuple):
    """A statement that sets a name which what a line reads was made of: its file and line, the name, and the place of the step that led to it, -1 for none; `meant` is that of several values that it is about."""

    file: str
    line: int
    name: str
    before: int
    statement: ast.stmt
    meant: ast.AST | None = None

    @property
    def heads(self) -> list[ast.AST]:
        """Return what is read for the name: that of several values which is meant, or all that the statement reads."""
        return heads_of(self.statement) if self.meant is None else [self.meant]

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


_Add = Callable[[str, _Value, int], int]


class Trails:
    """The sources of a script, and the ways back from their lines.

    Args:
        callers: the lines that were seen to call a function, by its first line: where any were, others are not followed.
    """

    def __init__(self, files: Iterable[str], callers: Mapping[Place, Sequence[Place]] | None = None) -> None:
        self._callers = callers or {}
        self._trees = {file: syntax_of(file) for file in files}
        self._frames: dict[tuple[str, int], _Frame] = {}
        self._scopes: dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]] = {}
        self._looks = 0
        self._wide = False
        self._models: dict[int, list[tuple[str, ast.Call]]] | None = None
        self._functions: dict[str, list[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]] = {}
        self._classes: dict[str, tuple[str, ast.ClassDef]] = {}
        self._stores: dict[str, list[tuple[str, ast.Assign]]] = {}
        self._calls: dict[str, list[tuple[str, ast.Call]]] = {}
        for file, tree in self._trees.items():
            own = self._scopes[file] = []
            for each in ast.walk(tree):
                if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
                    own.append(each)
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

    def back(self, file: str, line: int, *, wide: bool = False, of: Sequence[ast.AST] = ()) -> list[Step]:
        """Return the steps back from what a line of a file reads, the nearest first.

        Args:
            of: the parts of its statements that are meant; all without.
            wide: also through what a data set gives for a row, a model for its inputs and any function or class of the script's that is handed on
                may give, with what those return as steps of their own, named "return"; and through settings.
        """
        self._wide, self._looks = wide, 0
        tree = self._trees.get(file)
        statements = [] if tree is None else statements_at(tree, line)
        if not statements:
            return []
        steps: list[Step] = []
        seen: set[tuple[str, int, str, int]] = set()
        frame = self._frame_of(file, statements[0].lineno)

        def add(name: str, made: _Value, before: int) -> int:
            at = made.frame.file
            statement = statement_at(self._trees[at], made.line)
            step = Step(at, made.line, name, before, statement, _meant(made, statement))
            if (*step.key, made.part) in seen:
                return -1
            seen.add((*step.key, made.part))
            steps.append(step)
            return len(steps) - 1

        todo: deque[tuple[_Value, int]] = deque()
        for head in of or [head for each in statements for head in heads_of(each)]:
            todo += self._ways(_Value(head, statements[0].lineno, frame), add, -1)  # type: ignore[arg-type]
        while todo and len(steps) < MOST_STEPS:
            value, before = todo.popleft()
            for name, made in self._definitions(value):
                place = add(name, made, before)
                todo += self._ways(made, add, place) if place >= 0 else []
        return steps

    def _ways(self, value: _Value, add: _Add, before: int) -> list[tuple[_Value, int]]:
        """Return what an expression is made of, with the step that leads there; in a wide search after adding, as steps, what functions of the script's own return in it."""
        if not self._wide:
            return [(each, before) for each in self._made_of(value)]
        node = value.node
        if isinstance(node, ast.Tuple | ast.List) and 0 <= value.part < len(node.elts):
            return self._ways(_Value(node.elts[value.part], value.line, value.frame), add, before)
        if (
            isinstance(node, ast.Call)
            and last_name(node.func) in _IN_PARTS
            and 0 <= value.part < len(node.args)
        ):
            return self._ways(_Value(node.args[value.part], value.line, value.frame), add, before)
        ways: list[tuple[_Value, int]] = []
        for each in parts_of(node):
            if isinstance(each, ast.Call):
                whole = each is node or last_name(each.func) in self._classes  # of a data set, it is a row's
                own = _Value(each, value.line, value.frame, value.part if whole else -1)
                for inside in self._results(each, own) or self._inside(each, own):
                    place = add("return", inside, before)
                    ways += self._ways(inside, add, place) if place >= 0 else []
            elif isinstance(each, ast.Name | ast.Attribute) and isinstance(each.ctx, ast.Load):
                ways.append((_Value(each, value.line, value.frame, value.part), before))
        return ways

    def ahead(self, file: str, line: int) -> list[Step]:
        """Return the steps on from what a line of a file sets, or else reads: what reads it later, in the same function and in those of the script's own that are given it."""
        tree = self._trees[file]
        read = [each for each in statements_at(tree, line) for head in heads_of(each)]
        names = {name for each in read for name in names_set_by(each)} or {
            each.id for head in read for each in ast.walk(head) if isinstance(each, ast.Name)
        } - _NO_ROWS
        steps: list[Step] = []
        todo = deque((around(tree, line)[0], file, name, line, -1) for name in sorted(names))
        seen: set[tuple[int, str]] = set()
        while todo and len(steps) < MOST_STEPS:
            scope, at, name, after, before = todo.popleft()
            if (id(scope), name) in seen:
                continue
            seen.add((id(scope), name))
            for each in own_nodes(scope):
                if (
                    not isinstance(each, ast.stmt)
                    or each.lineno <= after
                    or not any(reads(head, name) for head in heads_of(each))
                ):
                    continue
                steps.append(Step(at, each.lineno, name, before, each))
                todo += [
                    (scope, at, later, each.lineno, len(steps) - 1) for later in sorted(names_set_by(each))
                ]
                for call in (
                    part for head in heads_of(each) for part in ast.walk(head) if isinstance(part, ast.Call)
                ):
                    known = self._functions.get(last_name(call.func), [])
                    if len(known) == 1:
                        given = bound_by(known[0][1], call, method=isinstance(call.func, ast.Attribute))
                        todo += [
                            (known[0][1], known[0][0], own, 0, len(steps) - 1)
                            for own, (value, _) in given.items()
                            if reads(value, name)
                        ]
        return steps

    def statements(self) -> Iterator[tuple[str, ast.stmt]]:
        """Yield all statements, each with its file."""
        for file, tree in self._trees.items():
            yield from ((file, each) for each in all_statements(tree))

    def is_under(self, file: str, line: int, condition: re.Pattern[str]) -> bool:
        """Return whether a line stands under a condition that has one of these words."""
        tests = (
            each
            for each in ast.walk(self._trees[file])
            if isinstance(each, ast.If | ast.IfExp) and spans(each, line)
        )
        return any(
            (each.test.lineno != line or isinstance(each, ast.IfExp))
            and condition.search(ast.unparse(each.test))
            for each in tests
        )

    def has_under(self, condition: re.Pattern[str], is_sought: Callable[[ast.AST], bool]) -> bool:
        """Return whether any statement under a condition that has one of these words is one that is sought."""
        conditions = (
            each
            for tree in self._trees.values()
            for each in ast.walk(tree)
            if isinstance(each, ast.If | ast.IfExp)
        )
        return any(
            condition.search(ast.unparse(each.test))
            and any(map(is_sought, each.body if isinstance(each, ast.If) else [each.body]))
            for each in conditions
        )

    def gives_rows(self, file: str, line: int) -> bool:
        """Return whether a line stands in what a data set gives for a row: of a table, it is its other columns that were to be left out."""
        nodes = ast.walk(self._trees[file])
        return any(isinstance(e, ast.FunctionDef) and e.name in _ROW and spans(e, line) for e in nodes)

    def called_in(self, statement: ast.stmt) -> list[ast.AST]:
        """Return the functions of the script's own that a statement calls by their names."""
        names = [last_name(each.func) for each in ast.walk(statement) if isinstance(each, ast.Call)]
        return [scope for name in names for _, scope in self._functions.get(name, []) if name not in _ACTS]

    def sets(self, target: re.Pattern[str]) -> bool:
        """Return whether any statement sets something whose text matches."""
        return any(
            isinstance(each, ast.Assign) and any(target.search(ast.unparse(one)) for one in each.targets)
            for _, each in self.statements()
        )

    def calls_of(self, file: str, line: int) -> list[Place]:
        """Return the lines that call something of the name of the function around a line."""
        scope = around(self._trees[file], line)[0]
        return [(other, call.lineno) for other, call in self._calls.get(getattr(scope, "name", ""), [])]

    def _frame_of(self, file: str, line: int) -> _Frame:
        """Return the frame of the innermost function around a line, of which no call is known."""
        if (file, line) not in self._frames:
            frame = _Frame(file, self._trees[file])
            for scope in self._scopes[file]:
                if spans(scope, line) and line != scope.lineno:
                    frame = _Frame(file, scope, {}, frame)
            self._frames[file, line] = frame
        return self._frames[file, line]

    def _definitions(self, value: _Value) -> Iterator[tuple[str, _Value]]:
        """Yield the names that an expression reads rows from, each with the value that a statement gives it."""
        node = value.node
        self._looks += 1
        if self._looks > MOST_LOOKS:
            return
        if isinstance(node, ast.Attribute):
            for file, each in self._stores.get(node.attr, []):
                for stored, part in parts_set(each.targets[0], each.value, node.attr, ast.Attribute):
                    yield node.attr, _Value(stored, each.lineno, self._frame_of(file, each.lineno), part)
            return
        if not isinstance(node, ast.Name) or node.id in (_NO_VALUES if self._wide else _NO_ROWS):
            return
        known_as = self._functions.get(node.id, []) if self._wide else []
        if len(known_as) == 1:  # a function that is handed on
            for given_back in self._returned(known_as[0][0], known_as[0][1], {}, value):
                yield "return", given_back
            return
        yield from self._bound_to(node.id, value)

    def _bound_to(self, name: str, value: _Value) -> Iterator[tuple[str, _Value]]:
        """Yield what a name is bound to where an expression reads it: in its function, by the calls of that, around it, or in another module of the script's."""
        frame = value.frame
        while frame is not None:
            known = list(bindings_of(frame.scope, name, value.line if frame is value.frame else 10**9))
            for made, part, line in known:
                yield name, _Value(made, line, frame, value.part if part < 0 else part)
            if known:
                return
            if name in frame.given:
                given = frame.given[name]
                yield f"{name}={ast.unparse(given.node)}", given
                return
            if isinstance(frame.scope, Function) and name in parameters_of(frame.scope):
                yield from self._arguments(frame, name)
                return
            if frame.outer is None:
                break
            frame = frame.outer
        for file, tree in self._trees.items():  # a name of another module of the script's
            if file != frame.file:
                for made, part, line in bindings_of(tree, name, 10**9):
                    yield name, _Value(made, line, _Frame(file, tree), part)

    def _arguments(self, frame: _Frame, name: str) -> Iterator[tuple[str, _Value]]:
        """Yield what the calls of a function give for a parameter."""
        scope = frame.scope
        if not isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
            return
        called = scope.name
        owner = next((c for _, c in self._classes.values() if scope in c.body), None)
        if called == "__init__" and owner is not None:
            called = owner.name
        calls = self._calls.get(called, [])
        if called == "forward" and owner is not None:  # of a model, which is called by any name
            calls = self._calls_of_model(scope) if self._wide else []
        first = min([scope.lineno, *(each.lineno for each in scope.decorator_list)])
        seen = self._callers.get((frame.file, first), ())
        calls = [each for each in calls if (each[0], each[1].lineno) in seen] or calls
        for file, call in calls:
            given = bound_by(scope, call, method=owner is not None).get(name)
            if given is not None:
                made = _Value(given[0], call.lineno, self._frame_of(file, call.lineno), given[1])
                yield f"{name}={ast.unparse(given[0])}", made

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
            inside = self._results(node, value)
            if inside:
                for each in inside:
                    yield from self._made_of(each)
                return
        for name_or_part in rows_in(node):
            yield _Value(name_or_part, value.line, frame, value.part)

    def _inside(self, call: ast.Call, value: _Value) -> list[_Value]:
        """Return what the methods of a class of the script's own give, where a call makes an object of it, and a model for its inputs, where it calls one."""
        file, made = self._classes.get(last_name(call.func), ("", None))
        given: dict[str, _Value] = {}
        methods = [each for each in made.body if isinstance(each, ast.FunctionDef)] if made else []
        methods = [each for each in methods if each.name != "__init__"]
        if made is None:
            file, forward = self._forward_of(_Value(call.func, value.line, value.frame))
            if forward is not None:
                methods = [forward]
                bound = bound_by(forward, call, method=True)
                given = {
                    name: _Value(each, value.line, value.frame, part) for name, (each, part) in bound.items()
                }
        if value.frame.depth >= MOST_CALLS:
            return []
        return [each for method in methods for each in self._returned(file, method, given, value)]

    def _forward_of(self, called: _Value) -> tuple[str, ast.FunctionDef | None]:
        """Return the forward pass of the class of which an object is called, followed back to the statement that makes it."""
        todo, seen = deque(given for _, given in self._definitions(called)), 0
        while todo and seen < MOST_HOPS:
            value = todo.popleft()
            seen += 1
            for each in ast.walk(value.node):
                file, made = self._classes.get(
                    last_name(each.func) if isinstance(each, ast.Call) else "", ("", None)
                )
                for method in made.body if made else ():
                    if isinstance(method, ast.FunctionDef) and method.name in _CALLED:
                        return file, method
                if isinstance(each, ast.Name | ast.Attribute):
                    part = _Value(each, value.line, value.frame)
                    todo += [given for _, given in self._definitions(part)]
                elif isinstance(each, ast.Call) and len(self._functions.get(last_name(each.func), [])) == 1:
                    todo += self._results(each, value)
        return "", None

    def _calls_of_model(self, forward: ast.AST) -> list[tuple[str, ast.Call]]:
        """Return the calls of objects of the class that has this forward pass."""
        if self._models is None:
            self._models = {}  # of the calls that are followed meanwhile none is of a model
            looks, self._looks = self._looks, 0
            models: dict[int, list[tuple[str, ast.Call]]] = {}
            for name, known in self._calls.items():
                if name in self._functions or name in self._classes:
                    continue
                for file, call in known:
                    called = _Value(call.func, call.lineno, self._frame_of(file, call.lineno))
                    _, scope = self._forward_of(called)
                    models.setdefault(id(scope), []).append((file, call))
            self._models, self._looks = models, looks
        return self._models.get(id(forward), [])

    def _returned(self, file: str, scope: Function, given: dict[str, _Value], value: _Value) -> list[_Value]:
        """Return what a function returns, of which a part is meant."""
        frame = _Frame(file, scope, given, _Frame(file, self._trees[file]), value.frame.depth + 1)
        if isinstance(scope, ast.Lambda):
            return [_Value(scope.body, value.line, frame, value.part)]
        returned = [each for each in own_nodes(scope) if isinstance(each, ast.Return | ast.Yield)]
        return [
            _Value(each.value, each.lineno, frame, value.part) for each in returned if each.value is not None
        ]

    def _results(self, call: ast.Call, value: _Value) -> list[_Value]:
        """Return what a function of the script's own gives for a call of it; nothing for others, and for methods that several classes have."""
        name = last_name(call.func)
        known = self._functions.get(name, [])
        scope: Function | None = None
        file = value.frame.file
        if len(known) == 1:
            file, scope = known[0]
        elif not known and isinstance(call.func, ast.Name):
            for made, _, _ in bindings_of(value.frame.scope, name, 10**9):
                scope = made if isinstance(made, ast.Lambda) else scope
        if scope is None or value.frame.depth >= MOST_CALLS:
            return []
        method = any(scope in each.body for _, each in self._classes.values())
        given = {
            parameter: _Value(each, call.lineno, value.frame, part)
            for parameter, (each, part) in bound_by(scope, call, method=method).items()
        }
        return self._returned(file, scope, given, value)


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


def _meant(made: _Value, statement: ast.stmt) -> ast.AST | None:
    """Return that of the several values which a statement gives that is meant; None where it gives one."""
    if isinstance(made.node, ast.Tuple) and 0 <= made.part < len(made.node.elts):
        return made.node.elts[made.part]
    whole = getattr(statement, "value", None)
    return (
        made.node if isinstance(whole, ast.Tuple) and any(each is made.node for each in whole.elts) else None
    )
