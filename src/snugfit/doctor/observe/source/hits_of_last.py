"""Hits and losses of the last batch of a loop beside the number of all, hits of all beside the rows of the last batch, and numbers to which no pass adds, as a script's source shows them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from snugfit.doctor.observe.source.script_syntax import last_name, names_in, names_set_by, own_nodes, reads

_LOSS = re.compile(r"loss|cost|err|acc|score|metric", re.IGNORECASE)
_KEEPS = re.compile(r"update|accum|running|total|avg|average|meter|history", re.IGNORECASE)
"""What a value of a batch is called that holds those before it too."""
_SIZES = (re.compile(r"len\(([\w.]+)\)"), re.compile(r"([\w.]+)\.(shape\[0\]|size\(0\))"))

_COUNT = re.compile(r"len\(\w+(\[\w+\])?\)|\w+(\[\w+\])?\.(size\(0\)|shape\[0\]|numel\(\))")
"""The rows of a batch, as they are counted."""


def hits_of_last_batch(scope: ast.AST, loop: ast.For) -> tuple[int, str] | None:
    """Return the line behind a loop that counts the hits of its last batch, and the name or the text of that count, which is divided by the rows of all; None without."""
    last = _left_by(loop)
    hits: dict[str, int] = {}
    for statement in _behind(scope, loop):
        if not isinstance(statement, ast.Assign | ast.AugAssign | ast.Expr | ast.Return):
            set_inside = {name for each in ast.walk(statement) for name in _sets(each)}
            last -= set_inside
            hits = {name: line for name, line in hits.items() if name not in set_inside}
            continue
        for each in ast.walk(statement):
            if not isinstance(each, ast.BinOp) or not isinstance(each.op, ast.Div):
                continue
            counted = _counts_hits(each.left, last)
            name = next((known for known in hits if reads(each.left, known)), "")
            if (counted or name) and _is_size_of_all(each.right, last, loop):
                return hits.get(name, each.lineno), name or ast.unparse(each.left)
        names = _sets(statement)
        value = statement.value
        counts = value is not None and (_counts_hits(value, last) or _hands_on(value, hits))
        own = bool(value is not None and names_in(value) & last) and not isinstance(statement, ast.AugAssign)
        for name in names:
            hits.pop(name, None)
        last = last | names if own else last - names
        if counts and not isinstance(statement, ast.AugAssign):
            hits |= dict.fromkeys(names, statement.lineno)
    return None


def loss_of_last_batch(scope: ast.AST, loop: ast.For) -> tuple[int, str] | None:
    """Return the line behind a loop that divides a loss of its last batch by what the loop counts, or by the length of what it goes through, and the name of that loss; None without."""
    last, counts = _left_by(loop), set[str]()
    losses: set[str] = set()
    for each in ast.walk(loop):
        if isinstance(each, ast.AugAssign) and isinstance(each.op, ast.Add):
            counts.add(ast.unparse(each.target))
        elif isinstance(each, ast.Assign):
            own = {name for name in names_set_by(each) & last if _LOSS.search(name)}
            losses = losses - own if _KEEPS.search(ast.unparse(each)) else losses | own
    through = loop.iter.args[0] if isinstance(loop.iter, ast.Call) and loop.iter.args else loop.iter
    counts |= {f"len({ast.unparse(through)})", f"len({ast.unparse(through)}.dataset)"}
    for statement in _behind(scope, loop):
        for each in ast.walk(statement):
            if not isinstance(each, ast.BinOp) or not isinstance(each.op, ast.Div):
                continue
            name = next((known for known in sorted(losses) if _is_value_of(each.left, known)), "")
            if name and ast.unparse(each.right) in counts:
                return each.lineno, name
        losses -= {name for each in ast.walk(statement) for name in _sets(each)}
    return None


def never_added_to(scope: ast.Module | ast.FunctionDef, loop: ast.For) -> tuple[int, str] | None:
    r"""Return the line in a loop or behind it that divides what is 0 wherever its function sets it, and its name; None without.

    >>> text = "def f(rows):\n total, count = 0.0, 0\n for row in rows:\n  count += 1\n print(total / count)\n return count / len(rows)"
    >>> function = ast.parse(text).body[0]
    >>> never_added_to(function, function.body[1])
    (5, 'total')
    """
    zero, other = set[int](), set[str]()
    for each in own_nodes(scope):
        if isinstance(each, ast.Assign):
            for target in each.targets:
                zero |= _names_of_zero(target, each.value)
    for node in ast.walk(scope):
        if isinstance(node, ast.Global | ast.Nonlocal):
            other |= {*node.names}
        elif isinstance(node, ast.arg):
            other.add(node.arg)
        elif (
            isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del) and id(node) not in zero
        ):
            other.add(node.id)
    begun = {each.id for each in own_nodes(scope) if isinstance(each, ast.Name) and id(each) in zero} - other
    for each in own_nodes(scope):
        divides = isinstance(each, ast.BinOp) and isinstance(each.op, ast.Div) and each.lineno > loop.lineno
        name = next((one for one in sorted(begun) if divides and _is_value_of(each.left, one)), "")  # type: ignore[attr-defined]
        if name:
            return each.lineno, name  # type: ignore[attr-defined]
    return None


def _names_of_zero(target: ast.expr, value: ast.expr) -> set[int]:
    """Return the names, as nodes, that an assignment sets to the number 0."""
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        pairs = zip(target.elts, value.elts, strict=False)
        return {each for pair in pairs for each in _names_of_zero(*pair)}
    number = isinstance(value, ast.Constant) and type(value.value) in (int, float) and value.value == 0
    return {id(target)} if number and isinstance(target, ast.Name) else set()


def _is_value_of(node: ast.AST, name: str) -> bool:
    """Return whether an expression is a name, or its number."""
    return (
        re.fullmatch(rf"(float\()?{name}(\.data|\.detach\(\)|\.cpu\(\))*(\.item\(\))?\)?", ast.unparse(node))
        is not None
    )


def hits_by_last_batch(scope: ast.AST, loop: ast.For) -> tuple[int, str] | None:
    """Return the line of a loop that sets anew, in each pass, the number of rows by which a sum of the hits of all passes is divided behind it, and the name of that sum; None without."""
    added = [each for each in ast.walk(loop) if isinstance(each, ast.AugAssign)]
    counts = {
        name: each.lineno
        for each in ast.walk(loop)
        if isinstance(each, ast.Assign) and _COUNT.fullmatch(ast.unparse(each.value))
        for name in names_set_by(each)
    }
    known = {name for each in added for name in names_in(each.target)}
    end = loop.end_lineno or loop.lineno
    behind = [each for each in own_nodes(scope) if getattr(each, "lineno", 0) > end]
    known |= {name for part in behind for name in _sets(part)}
    sets = [each for each in ast.walk(loop) if isinstance(each, ast.Assign)]
    sums = {name for each in sets if _sums_rows(each.value, set()) for name in names_set_by(each)}
    further = {
        id(each.left)
        for each in behind
        if isinstance(each, ast.BinOp)
        and isinstance(each.op, ast.Div)
        and isinstance(each.right, ast.Name | ast.Call)
    }
    for each in behind:
        count = each.right.id if isinstance(each, ast.BinOp) and isinstance(each.right, ast.Name) else ""
        if not isinstance(each, ast.BinOp) or not isinstance(each.op, ast.Div) or id(each) in further:
            continue
        for sum_ in added if count in counts and count not in known else ():
            name = ast.unparse(sum_.target)
            rows = _sums_rows(sum_.value, sums)
            if (
                isinstance(sum_.op, ast.Add)
                and rows
                and names_in(each.left) - {"float", "int", "torch"} == {name}
            ):
                return counts[count], name
    return None


def _sums_rows(value: ast.AST, sums: set[str]) -> bool:
    """Return whether an expression is a sum over the rows of a batch, or what is called so, and no mean.

    >>> [_sums_rows(ast.parse(text, mode="eval").body, {"right"}) for text in ("(a == b).sum().item()", "int(right)", "loss.item()", "e.sum(1).mean()")]
    [True, True, False, False]
    """
    called = {last_name(each.func) for each in ast.walk(value) if isinstance(each, ast.Call)}
    plain = not any(isinstance(each, ast.BinOp) for each in ast.walk(value)) and "mean" not in called
    return plain and bool(called & {"sum", "count_nonzero"} or names_in(value) & sums)


def _left_by(loop: ast.For) -> set[str]:
    """Return the names that each pass of a loop sets anew, from its batch alone."""
    names = names_in(loop.target)
    counted = isinstance(loop.iter, ast.Call) and ast.unparse(loop.iter.func) == "enumerate"
    if counted and isinstance(loop.target, ast.Tuple):
        names -= names_in(loop.target.elts[0])
    older: set[str] = set()
    for each in ast.walk(loop):
        if isinstance(each, ast.AugAssign):
            older |= names_in(each.target)
        elif isinstance(each, ast.Assign):
            set_here = names_set_by(each)
            if any(reads(each.value, name) for name in set_here - names):
                older |= set_here  # of what it was before: it may hold all
            elif names_in(each.value) & names and all(isinstance(e, ast.Name) for e in each.targets):
                names |= set_here
            else:
                older |= set_here
    return names - older


def _behind(scope: ast.AST, loop: ast.For) -> Iterator[ast.stmt]:
    """Yield the statements that follow a loop in its block."""
    for each in (scope, *own_nodes(scope)):
        for block in ("body", "orelse", "finalbody"):
            statements = getattr(each, block, None)
            if isinstance(statements, list) and loop in statements:
                yield from statements[statements.index(loop) + 1 :]


def _sets(node: ast.AST) -> set[str]:
    if isinstance(node, ast.AugAssign):
        return names_in(node.target)
    if isinstance(node, ast.For | ast.AsyncFor):
        return names_in(node.target)
    return names_set_by(node) if isinstance(node, ast.Assign) else set()


def _counts_hits(value: ast.AST, last: set[str]) -> bool:
    """Return whether an expression sums up where two things of the last batch are equal."""
    for call in (each for each in ast.walk(value) if isinstance(each, ast.Call)):
        if not isinstance(call.func, ast.Attribute) or call.func.attr != "sum":
            continue
        for each in ast.walk(call):
            if isinstance(each, ast.Compare) and isinstance(each.ops[0], ast.Eq):
                sides = (each.left, each.comparators[0])
                if all(names_in(side) & last for side in sides):
                    return True
    return False


def _hands_on(value: ast.AST, hits: dict[str, int]) -> bool:
    """Return whether an expression is a count of hits, or a number made of it by a call alone."""
    if isinstance(value, ast.Call):
        inner = value.func.value if isinstance(value.func, ast.Attribute) else None
        return any(_hands_on(each, hits) for each in [*value.args, *([inner] if inner is not None else [])])
    return isinstance(value, ast.Name) and value.id in hits


def _is_size_of_all(node: ast.AST, last: set[str], loop: ast.For) -> bool:
    """Return whether an expression is the number of rows of something that no pass of a loop sets, and not that of its batches."""
    text = ast.unparse(node)
    of = next((match.group(1) for each in _SIZES if (match := each.fullmatch(text))), "")
    own = {name for each in ast.walk(loop) for name in _sets(each)} | names_in(loop.target)
    whole = of and of.partition(".")[0] not in last | own
    return bool(whole) and not re.search(rf"(^|\W){re.escape(of)}(\W|$)", ast.unparse(loop.iter))
