"""Orders of rows, read in a script's source: which permutation the inputs of a batch were drawn by, and which one its targets."""

from __future__ import annotations

import ast
import re
from functools import lru_cache

from snugfit.doctor.observe.source.script_syntax import around, last_name, syntax_of

_PERMUTE = ("randperm", "permutation", "sort", "argsort", "topk")
_SHUFFLE = "shuffle"
TARGETS = re.compile(r"^[yt](_\w+)?$|label|target|mask|truth", re.IGNORECASE)
MOST_STEPS = 8
_Order = dict[str, int]
"""Permutations, each with the line that takes rows by it."""


@lru_cache(maxsize=256)
def other_order(file: str, line: int, inputs: str, targets: str) -> int:
    """Return the line that puts the rows of one of two names into an order that the other one's are not in; 0 where none does, or it does not show.

    Each call that draws a permutation draws another one. Both names must be taken from some rows; targets that are computed from the inputs are in their order.
    """
    tree = syntax_of(file)
    scope, _ = around(tree, line)
    text = ast.unparse(scope)
    names = _Names(scope, line)
    orders = [names.order(ast.Name(id=each, ctx=ast.Load()), 0) for each in (inputs, targets)]
    if not (names.are_taken(inputs) and names.are_taken(targets)) or orders[0].keys() == orders[1].keys():
        return 0
    if any(
        f"sort({name}" in text or f"{name}.sort(" in text or f"{name}.argsort(" in text
        for name in names.permutations
    ):
        return 0  # what the model gives is put back into the order that the rows had
    bases = names.bases(inputs), names.bases(targets)
    ordered = tuple(names.ordered(each, order) for each, order in zip(bases, orders, strict=True))
    if (
        bases[0] & bases[1]
        or names.is_made_of(bases[1], ordered[0])
        or names.is_made_of(bases[0], ordered[1])
    ):
        return 0
    apart = {**orders[0], **orders[1]} if orders[1].keys() - orders[0].keys() else orders[0]
    keys = (orders[1].keys() - orders[0].keys()) or (orders[0].keys() - orders[1].keys())
    return max(apart[key] for key in keys)


@lru_cache(maxsize=64)
def shuffled_apart(file: str) -> tuple[int, str, str] | None:
    """Return the line that puts one of two names into an order of its own, and both names, which the file pairs row by row; None without any.

    Two calls that draw an order stand one behind the other, in one block, and no seed is set between them.
    """
    tree = syntax_of(file)
    for scope in ast.walk(tree):
        for block in (getattr(scope, field, None) for field in ("body", "orelse", "finalbody")):
            drawn: list[tuple[str, str, str, int]] = []
            for statement in block if isinstance(block, list) else []:
                order = _drawn_by(statement)
                if order is None:
                    drawn = [] if _sets_seed(statement) else drawn
                    continue
                for how, seed, name, _ in drawn:
                    apart = how == order[0] and name != order[2] and (not seed or seed != order[1])
                    # pictures of two sets that belong to no pairs are shuffled apart on purpose
                    apart = apart and bool(TARGETS.search(name)) != bool(TARGETS.search(order[2]))
                    if apart and _are_paired(tree, {name}, {order[2]}):
                        return order[3], name, order[2]
                drawn.append(order)
    return None


def _drawn_by(statement: ast.stmt) -> tuple[str, str, str, int] | None:
    """Return how a statement puts an array alone into another order, by which seed, the name that has the result, and the line; None where it does not."""
    call = statement.value if isinstance(statement, ast.Expr | ast.Assign) else None
    if isinstance(statement, ast.Expr) and isinstance(call, ast.Call) and last_name(call.func) == _SHUFFLE:
        given = call.args[0] if len(call.args) == 1 and not call.keywords else None
        return (_SHUFFLE, "", given.id, statement.lineno) if isinstance(given, ast.Name) else None
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return None
    target = statement.targets[0]
    first = target.elts[0] if isinstance(target, ast.Tuple) and target.elts else target
    if not isinstance(first, ast.Name):
        return None
    if (
        isinstance(call, ast.Call)
        and last_name(call.func) in (_SHUFFLE, "train_test_split")
        and len(call.args) == 1
    ):
        seed = next((ast.unparse(each.value) for each in call.keywords if each.arg == "random_state"), "")
        stratified = any(each.arg == "shuffle" for each in call.keywords)
        return None if stratified else (last_name(call.func), seed, first.id, statement.lineno)
    if isinstance(call, ast.Subscript):
        draws = [
            e
            for e in ast.walk(call.slice)
            if isinstance(e, ast.Call) and last_name(e.func) in ("randperm", "permutation")
        ]
        return (
            ("index", "", first.id, statement.lineno) if draws and not isinstance(target, ast.Tuple) else None
        )
    return None


def _sets_seed(statement: ast.stmt) -> bool:
    names = [last_name(each.func) for each in ast.walk(statement) if isinstance(each, ast.Call)]
    return any("seed" in name or name in ("set_state", "set_rng_state", "setstate") for name in names)


def _are_paired(tree: ast.Module, one: set[str], other: set[str]) -> bool:
    """Return whether rows of two names, or of what is made of them, meet: in one data set, in zip, or by the same index in one statement."""
    for each in ast.walk(tree):
        if isinstance(each, ast.Assign) and len(each.targets) == 1 and isinstance(each.value, ast.Call):
            inner = each.value.args[:1]
            if isinstance(each.targets[0], ast.Name) and inner and isinstance(inner[0], ast.Name):
                for names in (one, other):
                    if inner[0].id in names:
                        names.add(each.targets[0].id)
    for each in ast.walk(tree):
        if isinstance(each, ast.Call) and last_name(each.func) in (
            "TensorDataset",
            "zip",
            "train_test_split",
        ):
            inside = [{e.id for e in ast.walk(part) if isinstance(e, ast.Name)} for part in each.args]
            if any(part & one for part in inside) and any(part & other for part in inside):
                return True
        if isinstance(each, ast.stmt) and not isinstance(
            each, ast.FunctionDef | ast.For | ast.While | ast.ClassDef | ast.If | ast.With
        ):
            taken: dict[str, set[str]] = {}
            for part in ast.walk(each):
                if isinstance(part, ast.Subscript) and isinstance(part.value, ast.Name):
                    taken.setdefault(ast.unparse(part.slice), set()).add(part.value.id)
            if any(names & one and names & other for names in taken.values()):
                return True
    return False


class _Names:
    """The last assignments of the names of a function, or of a module, in front of a line or in its loops."""

    def __init__(self, scope: ast.AST, line: int) -> None:
        self._values: dict[str, list[ast.expr]] = {}
        self._shuffled: dict[str, int] = {}
        self._over: dict[str, ast.expr] = {}
        self._given: set[str] = set()
        slices = [each.slice for each in ast.walk(scope) if isinstance(each, ast.Subscript)]
        self._indices = {e.id for each in slices for e in ast.walk(each) if isinstance(e, ast.Name)}
        for each in ast.walk(scope):
            if isinstance(each, ast.Assign) and each.lineno <= line:
                for target in each.targets:
                    self._assign(target, each.value)
            elif isinstance(each, ast.For):
                self._loop(each)
            elif isinstance(each, ast.Expr) and isinstance(each.value, ast.Call) and each.value.args:
                shuffled, name = each.value.args[0], last_name(each.value.func)
                if name == _SHUFFLE and isinstance(shuffled, ast.Name):
                    self._shuffled[shuffled.id] = each.lineno

    @property
    def permutations(self) -> list[str]:
        """Return the names that a call which orders rows gives, and that rows are taken by."""
        return [
            name
            for name, values in self._values.items()
            if name in self._indices
            and any(isinstance(each, ast.Call) and last_name(each.func) in _PERMUTE for each in values)
        ]

    def _assign(self, target: ast.expr, value: ast.expr) -> None:
        if (
            isinstance(target, ast.Tuple)
            and isinstance(value, ast.Tuple)
            and len(target.elts) == len(value.elts)
        ):
            for one, other in zip(target.elts, value.elts, strict=True):
                self._assign(one, other)
        elif (
            isinstance(target, ast.Tuple)
            and isinstance(value, ast.Call)
            and last_name(value.func) in _PERMUTE
        ):
            for one in target.elts:
                self._assign(one, value)
        elif isinstance(target, ast.Name):
            self._values.setdefault(target.id, []).append(value)

    def _loop(self, loop: ast.For) -> None:
        target, over = loop.target, loop.iter
        if (
            isinstance(target, ast.Tuple)
            and isinstance(over, ast.Call)
            and last_name(over.func) == "enumerate"
        ):
            target, over = target.elts[-1], over.args[0]
        if isinstance(target, ast.Name):
            self._over[target.id] = over
        elif isinstance(target, ast.Tuple):
            self._given |= {each.id for each in target.elts if isinstance(each, ast.Name)}

    def order(self, node: ast.expr, depth: int) -> _Order:
        """Return the permutations by which the rows of an expression were taken, each with its line."""
        node = _inner(node)
        if depth > MOST_STEPS:
            return {}
        if isinstance(node, ast.Subscript):
            key = self._permutation(node.slice, depth + 1)
            return {**self.order(node.value, depth + 1), **({key: node.lineno} if key else {})}
        if not isinstance(node, ast.Name):
            return {}
        orders: _Order = {}
        if node.id in self._shuffled:
            orders[node.id] = self._shuffled[node.id]
        for value in self._values.get(node.id, []):
            inner = _inner(value)
            if isinstance(inner, ast.Subscript):
                own = (
                    isinstance(_inner(inner.value), ast.Name) and ast.unparse(_inner(inner.value)) == node.id
                )
                key = self._permutation(inner.slice, depth + 1)
                orders.update({key: inner.lineno} if key else {})
                orders.update({} if own else self.order(inner.value, depth + 1))
            elif isinstance(inner, ast.Name) and inner.id != node.id:
                orders.update(self.order(inner, depth + 1))
        return orders

    def _permutation(self, node: ast.expr, depth: int) -> str:
        """Return the permutation that an index of rows is, or is taken from, "" for none: a call is one of its own, a name is one for all who use it."""
        if isinstance(node, ast.Tuple) and node.elts:  # of columns it says nothing
            node = node.elts[0]
        for each in ast.walk(node):
            if isinstance(each, ast.Call) and last_name(each.func) in _PERMUTE:
                return f"{each.lineno}:{each.col_offset}"
        names = [each.id for each in ast.walk(node) if isinstance(each, ast.Name)]
        for name in names if depth <= MOST_STEPS else []:
            for value in (*self._values.get(name, []), *([self._over[name]] if name in self._over else [])):
                if orders := self._permutation(value, depth + 1):
                    return orders
        return ""

    def bases(self, name: str) -> frozenset[str]:
        """Return the names that the rows of a name are taken from, and itself."""
        todo, seen = [name], set[str]()
        while todo and len(seen) < 64:
            each = todo.pop()
            if each not in seen:
                seen.add(each)
                for value in self._values.get(each, []):
                    inner = _inner(value)
                    while isinstance(inner, ast.Subscript):
                        inner = _inner(inner.value)
                    if isinstance(inner, ast.Name):
                        todo.append(inner.id)
        return frozenset(seen)

    def ordered(self, names: frozenset[str], order: _Order) -> frozenset[str]:
        """Return those of some names whose rows are in an order already, or all where there is none: what others are made of before says nothing."""
        own = {each: self.order(ast.Name(id=each, ctx=ast.Load()), 0) for each in names}
        return frozenset(name for name, keys in own.items() if order.keys() <= keys.keys())

    def are_taken(self, name: str) -> bool:
        """Return whether the rows of a name are some of others', by an index, or those that a loop gives."""
        if self.bases(name) & self._given:
            return True
        values = [value for base in self.bases(name) for value in self._values.get(base, [])]
        return any(isinstance(_inner(value), ast.Subscript) for value in values)

    def is_made_of(self, names: frozenset[str], others: frozenset[str]) -> bool:
        """Return whether one of these names is computed from one of the others."""
        return any(
            isinstance(part, ast.Name) and part.id in others
            for name in names
            for value in self._values.get(name, [])
            if not isinstance(_inner(value), ast.Subscript)
            for part in ast.walk(value)
        )


def _inner(node: ast.expr) -> ast.expr:
    """Return what a chain of calls of methods, or a call of one value, is made for, such as X[rows] of torch.tensor(X[rows]).float()."""
    while isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Subscript | ast.Call):
            node = node.func.value
        elif node.args and isinstance(node.args[0], ast.Subscript | ast.Call):
            node = node.args[0]
        else:
            break
    return node
