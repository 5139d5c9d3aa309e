"""Losses of policies that lower the probability of what turned out well: the sign of the product of a logarithm and an advantage, read in the script's source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from snugfit.doctor.observe.source.script_syntax import last_name, own_nodes
from snugfit.doctor.observe.source.trails import Place, Trails

_LIKELY = re.compile(
    r"(^|_)(log_?_?(p|pi|prob\w*|likelihoods?)|logps?|new_?log_?prob\w*|ratios?)(_|\d|$)|logprob",
    re.IGNORECASE,
)
_GAINS = re.compile(
    r"(^|_)(adv\w*|advantages?|returns?|ret|rewards?|discounted\w*|td_?errors?|deltas?|gains?|rets)(_|\d|$)|^[GRA]$"
)
_PASSES = frozenset(
    [
        "mean", "sum", "min", "max", "minimum", "maximum", "stack", "cat", "concat", "squeeze", "view", "reshape", "flatten", "clamp", "clip",
        "masked_select", "nanmean", "tensor", "float", "to", "unsqueeze", "einsum",
    ]
)  # fmt: skip
MOST_DEPTH = 12


class Raised(NamedTuple):
    """A product of a likelihood and a gain that a loss adds: its place, and what both are called."""

    at: Place
    likelihood: str
    gain: str


def lowered_policies(trails: Trails) -> Iterator[Raised]:
    """Yield the products of the logarithms of probabilities, or their ratios, and what was gained that a loss has with a plus, which a step lowers."""
    for file, statement in trails.statements():
        call = statement.value if isinstance(statement, ast.Expr) else None
        if (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Attribute)
            and call.func.attr == "backward"
        ):
            scope = _scope_of(trails, file, statement)
            loss = _loss_of(call)
            signed = None if loss is None else _signed(scope, loss, 0)
            if signed is not None and signed[0] > 0:
                yield Raised((file, signed[1].lineno), signed[2], signed[3])
        elif isinstance(statement, ast.Return) and statement.value is not None:
            scope = _scope_of(trails, file, statement)
            name = getattr(scope, "name", "")
            signed = _signed(scope, statement.value, 0) if re.search(r"loss", name, re.IGNORECASE) else None
            if signed is not None and signed[0] > 0:
                yield Raised((file, signed[1].lineno), signed[2], signed[3])


_Signed = tuple[int, ast.expr, str, str]


def _scope_of(trails: Trails, file: str, statement: ast.stmt) -> ast.AST:
    scopes = [
        each
        for each in ast.walk(trails.tree(file))
        if isinstance(each, ast.FunctionDef) and each.lineno <= statement.lineno <= (each.end_lineno or 0)
    ]
    return max(scopes, key=lambda each: each.lineno, default=trails.tree(file))


def _loss_of(call: ast.Call) -> ast.expr | None:
    """Return what a call of `backward` differentiates, through a scaler or a fabric that is given it."""
    if call.args:
        return call.args[0]
    value = call.func.value if isinstance(call.func, ast.Attribute) else None
    return (
        value.args[0]
        if isinstance(value, ast.Call) and last_name(value.func) == "scale" and value.args
        else value
    )


def _signed(scope: ast.AST, node: ast.expr, depth: int) -> _Signed | None:
    """Return the sign that the product has in an expression, the product, and the names of its factors; None without, or where that cannot be told."""
    if depth > MOST_DEPTH:
        return None
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return _turned(_signed(scope, node.operand, depth + 1))
    if isinstance(node, ast.BinOp):
        if isinstance(node.op, ast.Mult):
            product = _product(scope, node)
            if product is not None:
                return product
        return _of_operands(scope, node, depth)
    if isinstance(node, ast.Call):
        base = node.func.value if isinstance(node.func, ast.Attribute) else None
        if last_name(node.func) not in _PASSES:
            return None
        parts = [] if base is None or last_name(base) in ("torch", "np", "F") else [base]
        for each in [*parts, *node.args]:
            signed = _signed(scope, each, depth + 1)
            if signed is not None:
                return signed
        return None
    if isinstance(node, ast.List | ast.Tuple):
        return next((signed for each in node.elts if (signed := _signed(scope, each, depth + 1))), None)
    if isinstance(node, ast.ListComp | ast.GeneratorExp):
        return _signed(scope, node.elt, depth + 1)
    if isinstance(node, ast.Name):
        return _of_name(scope, node, depth)
    return None


def _of_operands(scope: ast.AST, node: ast.BinOp, depth: int) -> _Signed | None:
    left, right = (_signed(scope, each, depth + 1) for each in (node.left, node.right))
    if left is not None:
        minus = isinstance(node.op, ast.Mult | ast.Div) and _is_negative(node.right)
        return _turned(left) if minus else left
    if right is None:
        return None
    minus = isinstance(node.op, ast.Sub) or (isinstance(node.op, ast.Mult) and _is_negative(node.left))
    return _turned(right) if minus else right


def _of_name(scope: ast.AST, node: ast.Name, depth: int) -> _Signed | None:
    """Return the sign of what a name was last given before it is read, or of what is put into its list."""
    values: list[tuple[int, ast.expr, bool]] = []
    for each in own_nodes(scope):
        if isinstance(each, ast.Assign) and any(
            isinstance(t, ast.Name) and t.id == node.id for t in each.targets
        ):
            values.append((each.lineno, each.value, False))
        elif (
            isinstance(each, ast.AugAssign)
            and isinstance(each.target, ast.Name)
            and each.target.id == node.id
        ):
            values.append((each.lineno, each.value, isinstance(each.op, ast.Sub)))
        elif isinstance(each, ast.Call) and each.args and ast.unparse(each.func) == f"{node.id}.append":
            values.append((each.lineno, each.args[0], False))
    for line, value, minus in sorted(values, key=lambda each: -each[0]):
        if line < node.lineno or not any(each[0] < node.lineno for each in values):
            signed = _signed(scope, value, depth + 1)
            if signed is not None:
                return _turned(signed) if minus else signed
    return None


def _product(scope: ast.AST, node: ast.BinOp) -> _Signed | None:
    """Return the sign of a product of a likelihood and a gain, and of numbers."""
    sign, likelihood, gain = 1, "", ""
    for each in _factors(node):
        inner = each
        while isinstance(inner, ast.UnaryOp) and isinstance(inner.op, ast.USub):
            sign, inner = -sign, inner.operand
        if _is_negative(inner):
            sign = -sign
        names = [last_name(part) for part in ast.walk(inner) if last_name(part)]
        minus = any(
            isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.USub) for part in ast.walk(inner)
        )
        if minus and not isinstance(inner, ast.Constant):
            return None
        if not likelihood and any(_LIKELY.search(name) for name in names):
            likelihood = next(name for name in names if _LIKELY.search(name))
        elif any(_GAINS.search(name) for name in names):
            gain = next(name for name in names if _GAINS.search(name))
            if isinstance(inner, ast.Name) and _is_turned(scope, inner):
                sign = -sign
    return (sign, node, likelihood, gain) if likelihood and gain else None


def _is_turned(scope: ast.AST, name: ast.Name) -> bool:
    """Return whether a name is given something with a minus before it."""
    return any(
        isinstance(each, ast.Assign)
        and isinstance(each.value, ast.UnaryOp)
        and isinstance(each.value.op, ast.USub)
        and any(isinstance(t, ast.Name) and t.id == name.id for t in each.targets)
        for each in own_nodes(scope)
    )


def _factors(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        yield from _factors(node.left)
        yield from _factors(node.right)
    else:
        yield node


def _is_negative(node: ast.expr) -> bool:
    return isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)


def _turned(signed: _Signed | None) -> _Signed | None:
    return None if signed is None else (-signed[0], *signed[1:])
