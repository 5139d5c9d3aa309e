"""Rows that a script's source splits into parts too late: what was fitted to all of them, and graphs that hold the edges of both parts."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from snugfit.doctor.observe.source.script_syntax import last_name, names_in, names_set_by, syntax_of

_FITTED = re.compile(
    r"(Standard|MinMax|Robust|MaxAbs)Scaler|(Power|Quantile)Transformer|PCA|Imputer|SelectKBest|TfidfVectorizer|TruncatedSVD"
)
_SPLITTERS = ("train_test_split", "random_split")
_STATISTICS = {
    "mean",
    "std",
    "var",
    "min",
    "max",
    "amin",
    "amax",
    "median",
    "quantile",
    "percentile",
    "std_mean",
    "var_mean",
}
_PART = re.compile(r"train|(^|_)tr(_|$)", re.IGNORECASE)
_SCORED = re.compile(r"test|val(id)?|eval|held|dev", re.IGNORECASE)
_EDGES = re.compile(r"edge|link|interaction|triple|(^|_)pairs?(_|$)", re.IGNORECASE)
_GRAPH = re.compile(r"adj|graph|norm|lapl|edge_index|a_hat|propag|^A$|(^|_)gcn", re.IGNORECASE)


class LateSplit(NamedTuple):
    """A thing made of all rows, of which parts are taken afterwards.

    Args:
        line: where it was made.
        made_by: what made it.
        split: the line that takes the parts.
    """

    line: int
    made_by: str
    split: int


@lru_cache(maxsize=64)
def fitted_before_split(file: str) -> LateSplit | None:
    """Return what was fitted to all rows before some of them were set aside; None where nothing shows it."""
    tree = syntax_of(file)
    for body in _scopes(tree):
        split = _fitted_in(body, tree)
        if split is not None:
            return split
    return None


@lru_cache(maxsize=64)
def graph_of_all_edges(file: str) -> LateSplit | None:
    """Return where a graph is made of all edges, of which a part is set aside to be predicted; None where nothing shows it."""
    for body in _scopes(syntax_of(file)):
        split = _graph_in(body)
        if split is not None:
            return split
    return None


def _scopes(tree: ast.Module) -> Iterator[list[ast.stmt]]:
    """Yield the statements of the module and of each function, those of inner blocks in their order too, without those of inner functions."""
    yield list(_flat(tree.body))
    for each in ast.walk(tree):
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            yield list(_flat(each.body))


def _flat(block: list[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in block:
        yield statement
        if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            for field in ("body", "orelse", "finalbody"):
                yield from _flat(getattr(statement, field, []))


def _fitted_in(body: list[ast.stmt], tree: ast.Module) -> LateSplit | None:
    r"""Return the first statement of a scope that fits something to whole rows which are split after it.

    >>> text = "s = StandardScaler()\nx = s.fit_transform(rows)\na, b = x[:n], x[n:]"
    >>> _fitted_in(ast.parse(text).body, ast.parse(text))
    LateSplit(line=2, made_by='StandardScaler', split=3)
    >>> text = "s = StandardScaler().fit(rows[:n])\nx = s.transform(rows)\na, b = x[:n], x[n:]"
    >>> _fitted_in(ast.parse(text).body, ast.parse(text))
    """
    parts: set[str] = set()
    for place, statement in enumerate(body):
        if not isinstance(statement, ast.Assign | ast.Expr):
            continue
        made_by, given = _fits(statement, tree) or ("", None)
        whole = isinstance(given, ast.Name) and given.id not in parts and not _PART.search(given.id)
        whole = whole or (
            isinstance(given, ast.Call | ast.Attribute | ast.Subscript) and _is_whole(given, parts)
        )
        if made_by and whole and given is not None:
            applied = names_set_by(statement) if ".fit_transform(" in ast.unparse(statement) else set()
            names = applied or names_in(given)
            split = _split_of(names, body[place + 1 :], parts, _lists_of_parts(body))
            if split:
                return LateSplit(statement.lineno, made_by, split)
        if isinstance(statement, ast.Assign) and _takes_part(statement.value):
            parts |= names_set_by(statement)
    return None


def _fits(statement: ast.stmt, tree: ast.Module) -> tuple[str, ast.expr | None] | None:
    """Return the class of what a statement fits to its rows and applies to them, and the rows; None where it does not."""
    for call in (each for each in ast.walk(statement) if isinstance(each, ast.Call)):
        if not isinstance(call.func, ast.Attribute) or not call.args:
            continue
        if call.func.attr not in ("fit_transform", "fit"):
            continue
        kind = _class_of(call.func.value, tree)
        if kind:
            return kind, call.args[0]
    return None


def _class_of(value: ast.expr, tree: ast.Module) -> str:
    """Return the class, of those that learn from rows, that a value is an instance of; "" where it is none."""
    text = ast.unparse(value)
    if isinstance(value, ast.Name | ast.Attribute):
        made = [
            ast.unparse(each.value)
            for each in ast.walk(tree)
            if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == text
        ]
        text = made[0] if made else ""
    match = _FITTED.search(text)
    if match:
        return match.group(0)
    own = re.match(r"(\w+)\(", text)
    return own.group(1) if own and _learns_scale(own.group(1), tree) else ""


def _learns_scale(name: str, tree: ast.Module) -> bool:
    """Return whether a class of the script has a method `fit` that takes statistics of what it is given, and one that applies them."""
    classes = (each for each in ast.walk(tree) if isinstance(each, ast.ClassDef) and each.name == name)
    methods = {e.name: e for each in classes for e in each.body if isinstance(e, ast.FunctionDef)}
    fit = methods.get("fit")
    taken = {last_name(e.func) for e in ast.walk(fit) if isinstance(e, ast.Call)} if fit else set()
    return bool(taken & _STATISTICS) and bool(
        methods.keys() & {"transform", "__call__", "scale", "apply", "encode"}
    )


def _is_whole(value: ast.expr, parts: set[str]) -> bool:
    """Return whether an expression takes all rows of what it reads, such as a column of a table."""
    if _takes_part(value) or names_in(value) & parts or any(_PART.search(name) for name in names_in(value)):
        return False
    return not any(isinstance(each, ast.Attribute) and _PART.search(each.attr) for each in ast.walk(value))


def _takes_part(value: ast.expr) -> bool:
    """Return whether an expression takes some of the rows: a front or a back, or by a split."""
    return any(_is_slice_of_rows(each) or _splits(each) for each in ast.walk(value))


def _is_slice_of_rows(node: ast.AST) -> bool:
    return _bounds(node) is not None


def _bounds(node: ast.AST) -> ast.Slice | None:
    """Return the slice by which rows, or columns of all rows, are taken; None where all are, or single ones."""
    if not isinstance(node, ast.Subscript):
        return None
    axes = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    some = [
        each for each in axes[:2] if not (isinstance(each, ast.Slice) and each.lower is each.upper is None)
    ]
    first = some[0] if some else None
    return first if isinstance(first, ast.Slice) and first.step is None else None


def _splits(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = last_name(node.func)
    return name in _SPLITTERS


def _split_of(
    names: set[str], after: list[ast.stmt], parts: set[str], lists: frozenset[str] = frozenset()
) -> int:
    """Return the line that sets aside some rows of what has these names, or of what is made of it; 0 where none does."""
    names = set(names) - parts
    fronts: dict[str, tuple[str, int]] = {}
    indices: dict[str, set[str]] = {}
    numbers = set(parts)
    ranges: list[tuple[str, list[str], int]] = []
    for statement in after:
        if _gives_parts(statement, names):
            return statement.lineno
        if isinstance(statement, ast.Assign) and _takes_part(statement.value):
            numbers |= names_set_by(statement) - names
        each_part = _names_of_each(statement, lists)
        # the front of an array before its back
        for node in sorted(_expressions(statement), key=lambda each: getattr(each, "col_offset", 0)):
            if isinstance(node, ast.Call) and _given(node) & names:
                name = last_name(node.func)
                folds = (
                    name == "split"
                    and isinstance(node.func, ast.Attribute)
                    and not names_in(node.func.value) & names
                )
                if name in _SPLITTERS or folds:
                    return int(node.lineno)
                if (line := _goes_on_from(node, names, ranges)) and _is_scored(statement):
                    return line
            taken = _bounds(node)
            if isinstance(node, ast.Subscript) and names_in(node.value) & names:
                index = _index_of_part(node, numbers)
                taken_by = indices.setdefault(ast.unparse(node.value), set())
                taken_by |= {index} - {""}
                if len(taken_by) > 1 or names_in(node.slice) & each_part:
                    return int(node.lineno)
            if isinstance(node, ast.Subscript) and taken is not None and names_in(node.value) & names:
                bound = ast.unparse(
                    taken.upper if taken.lower is None and taken.upper is not None else taken.lower or taken
                )
                kind = "front" if taken.lower is None else "back"
                base = ast.unparse(node.value)
                shared = kind == "back" and _begins_near(bound, base, fronts)
                if shared:
                    return shared
                known = fronts.setdefault(f"{base}[{bound}]", (kind, node.lineno))
                if known[0] != kind and not bound.startswith(("-1", "1")):
                    return known[1]
        if (
            isinstance(statement, ast.Assign)
            and names_in(statement.value) & names
            and not _takes_part(statement.value)
        ):
            names |= names_set_by(statement)
    return 0


def _gives_parts(statement: ast.stmt, names: set[str]) -> bool:
    r"""Return whether a statement calls something that makes of an array what is trained on and what is scored, by what the results are called.

    >>> [_gives_parts(ast.parse(text).body[0], {"x"}) for text in ("train, valid = halves(x)", "train, valid = halves(y)", "a, b = halves(x)")]
    [True, False, False]
    """
    if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
        return False
    target = statement.targets[0]
    parts = [ast.unparse(each) for each in target.elts] if isinstance(target, ast.Tuple) else []
    given = {each.id for each in statement.value.args if isinstance(each, ast.Name)}
    return bool(given & names) and any(map(_PART.search, parts)) and any(map(_SCORED.search, parts))


def _is_scored(statement: ast.stmt) -> bool:
    """Return whether a statement sets a name of rows that are held out."""
    return isinstance(statement, ast.Assign) and any(
        _SCORED.search(ast.unparse(each)) for each in statement.targets
    )


def _goes_on_from(call: ast.Call, names: set[str], ranges: list[tuple[str, list[str], int]]) -> int:
    r"""Return the line of a call before that was given the same array and a range of its rows from whose end on this one takes them; 0 without.

    Both make one thing, such as a data set. A call is added to those that went before.

    >>> seen = []
    >>> texts = ("Windows(x, 9, 0, a)", "Windows(x, 9, a - past, b)", "Windows(y, 9, b, c)", "Windows(x, 9, 0, a)")
    >>> [_goes_on_from(ast.parse(text, mode="eval").body, {"x"}, seen) for text in texts]
    [0, 1, 0, 0]
    """
    given = [ast.unparse(each) for each in (*call.args, *(each.value for each in call.keywords))]
    array = next((each for each in given if each in names), "")
    if not array:
        return 0
    made = f"{ast.unparse(call.func)}({array})"
    bounds = [each for each in given if each != array]
    for other, before, line in ranges:
        for place, end in enumerate(before) if other == made else ():
            plain = end.replace(".", "").isidentifier() or end.isdigit()
            if plain and any(re.match(rf"{re.escape(end)}(\s*[-+]|$)", each) for each in bounds[:place]):
                return line
    ranges.append((made, bounds, call.lineno))
    return 0


def _index_of_part(node: ast.Subscript, parts: set[str]) -> str:
    """Return what takes some rows of an array by their numbers, where these are a part of all; "" where they are not."""
    first = node.slice.elts[0] if isinstance(node.slice, ast.Tuple) and node.slice.elts else node.slice
    some = isinstance(first, ast.Name) and first.id in parts
    return ast.unparse(first) if some or _is_slice_of_rows(first) else ""


def _lists_of_parts(body: list[ast.stmt]) -> frozenset[str]:
    """Return the names of lists of several parts of one array, as they are written out."""
    return frozenset(
        name
        for each in body
        if isinstance(each, ast.Assign) and isinstance(each.value, ast.Tuple | ast.List)
        if sum(map(_is_slice_of_rows, each.value.elts)) > 1 and len(names_set_by(each)) == 1
        for name in names_set_by(each)
    )


def _names_of_each(statement: ast.stmt, lists: frozenset[str]) -> set[str]:
    """Return the names under which a statement has each of several parts in turn."""
    loops = [each for each in ast.walk(statement) if isinstance(each, ast.comprehension | ast.For)]
    return {
        each.target.id
        for each in loops
        if isinstance(each.target, ast.Name) and isinstance(each.iter, ast.Name) and each.iter.id in lists
    }


def _begins_near(bound: str, base: str, fronts: dict[str, tuple[str, int]]) -> int:
    """Return the line that takes a front of an array which ends at a name from which a back of it begins, as many before or behind; 0 without."""
    for key, (kind, line) in fronts.items():
        name = key.removeprefix(f"{base}[").removesuffix("]")
        if (
            kind == "front"
            and key == f"{base}[{name}]"
            and name.isidentifier()
            and re.search(rf"^{name}\s*[-+]", bound)
        ):
            return line
    return 0


@lru_cache(maxsize=64)
def refitted(file: str) -> LateSplit | None:
    r"""Return where something that was fitted to the training rows is fitted anew to others that are scored; None where nothing shows it."""
    tree = syntax_of(file)
    return next((each for each in map(_refitted_in, _scopes(tree)) if each is not None), None)


def _refitted_in(body: list[ast.stmt]) -> LateSplit | None:
    r"""Return the second statement of a scope that fits one scaler, to rows that are scored.

    >>> _refitted_in(ast.parse("a = s.fit_transform(train)\nb = s.fit_transform(test)").body)
    LateSplit(line=2, made_by='s', split=1)
    >>> _refitted_in(ast.parse("a = s.fit_transform(train)\nb = s.transform(test)").body)
    """
    fitted: dict[str, int] = {}
    for statement in body:
        for call in _expressions(statement):
            if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or not call.args:
                continue
            owner = ast.unparse(call.func.value)
            if call.func.attr not in ("fit_transform", "fit") or not owner.replace(".", "").isidentifier():
                continue
            words = " ".join([*names_set_by(statement), ast.unparse(call.args[0])])
            if owner in fitted and _SCORED.search(words) and not _PART.search(words):
                return LateSplit(call.lineno, owner, fitted[owner])
            fitted.setdefault(owner, statement.lineno)
    return None


def _expressions(statement: ast.stmt) -> Iterator[ast.AST]:
    """Yield the nodes of a statement without those of the statements in it, which come by themselves."""
    todo: list[ast.AST] = [statement]
    while todo:
        node = todo.pop()
        yield node
        todo += [each for each in ast.iter_child_nodes(node) if not isinstance(each, ast.stmt)]


def _given(call: ast.Call) -> set[str]:
    values = [*call.args, *(each.value for each in call.keywords)]
    return {name for value in values for name in names_in(value)}


def _graph_in(body: list[ast.stmt]) -> LateSplit | None:
    r"""Return the statement of a scope that makes a graph of edges of which another one sets a part aside.

    >>> text = "held, rest = edges[:, :n], edges[:, n:]\nadj = normalised(edges, nodes)"
    >>> _graph_in(ast.parse(text).body)
    LateSplit(line=2, made_by='edges', split=1)
    >>> _graph_in(ast.parse(text.replace("(edges, n", "(rest, n")).body)
    """
    edges = {
        each.id
        for statement in body
        for each in _expressions(statement)
        if isinstance(each, ast.Name) and _EDGES.search(each.id)
    }
    split = {name: line for name in edges if (line := _split_of({name}, body, set()))}
    for statement in body:
        if not isinstance(statement, ast.Assign) or not isinstance(statement.value, ast.Call):
            continue
        targets = names_set_by(statement)
        call = statement.value
        whole = {
            each.id for each in (*call.args, *(k.value for k in call.keywords)) if isinstance(each, ast.Name)
        } & split.keys()
        made = ast.unparse(call.func)
        if (
            whole
            and not _splits(call)
            and not _also_of_part(made, body)
            and any(_GRAPH.search(each) for each in (*targets, made))
            and not targets & whole
        ):
            name = min(whole)
            return LateSplit(statement.lineno, name, split[name])
    return None


def _also_of_part(made: str, body: list[ast.stmt]) -> bool:
    """Return whether a scope makes the same of the part that is trained on, so that the whole has another use."""
    return any(
        isinstance(each, ast.Call)
        and ast.unparse(each.func) == made
        and any(isinstance(given, ast.Name) and _PART.search(given.id) for given in each.args)
        for statement in body
        for each in _expressions(statement)
    )
