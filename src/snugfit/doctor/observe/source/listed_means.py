"""Means over the rows of a batch that an evaluation puts into lists, also of a dictionary, and averages behind its loop, as a script's source shows."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from snugfit.doctor.observe.source.script_syntax import last_name, own_nodes

_HANDED_ON = ("item", "cpu", "detach", "numpy", "float", "tolist")
_AVERAGES = ("mean", "fmean", "nanmean")


def averaged_means(scope: ast.Module | ast.FunctionDef, loop: ast.For) -> tuple[int, str] | None:
    r"""Return the line behind a loop that averages the means which it has put into lists, and the name of these; None without, or where the loop learns.

    >>> text = "for b in loader:\n  kept.setdefault('a', []).append(error(b).mean().item())\nout = {k: np.mean(v) for k, v in kept.items()}"
    >>> trees = [ast.parse(each) for each in (text, text.replace(".mean()", ""), text.replace("mean().item", "backward"))]
    >>> [averaged_means(tree, tree.body[0]) for tree in trees]
    [(3, 'kept'), None, None]
    """
    if any(isinstance(each, ast.Attribute) and each.attr == "backward" for each in ast.walk(loop)):
        return None
    names = set(_lists_of_means(loop))
    for each in own_nodes(scope) if names else ():
        if getattr(each, "lineno", 0) > (loop.end_lineno or loop.lineno):
            parts = {
                part: name
                for inner in ast.walk(each)
                if isinstance(inner, ast.comprehension)
                for name in names & _names(inner.iter)
                for part in _names(inner.target)
            }
            for call in ast.walk(each):
                given = _averaged(call)
                known = given if given in names else parts.get(given, "")
                if known:
                    return getattr(call, "lineno", 0), known
    return None


def _lists_of_means(loop: ast.For) -> Iterator[str]:
    """Yield the names of lists, or of dictionaries of them, to which each pass of a loop appends a mean over all that its batch has."""
    for each in ast.walk(loop):
        if isinstance(each, ast.Call) and last_name(each.func) == "append" and len(each.args) == 1:
            value: ast.AST = each.args[0]
            while isinstance(value, ast.Call) and last_name(value.func) in _HANDED_ON:
                value = value.func.value if isinstance(value.func, ast.Attribute) else value.args[0]
            is_mean = isinstance(value, ast.Call) and last_name(value.func) == "mean"
            if is_mean and isinstance(value, ast.Call) and not value.args and not value.keywords:
                held: ast.AST = each.func
                while isinstance(held, ast.Attribute | ast.Subscript | ast.Call):
                    held = held.func if isinstance(held, ast.Call) else held.value
                if isinstance(held, ast.Name) and held.id != "self":
                    yield held.id


def _averaged(node: ast.AST) -> str:
    """Return the name of a list that a node averages, each entry of which counts alike; "" without.

    >>> texts = ("np.mean(v)", "sum(v) / len(v)", "torch.tensor(v).mean()", "np.mean(kept['a'])", "np.average(v, weights=w)", "np.mean(v, 0)")
    >>> [_averaged(ast.parse(text, mode="eval").body) for text in texts]
    ['v', 'v', 'v', 'kept', '', '']
    """
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        texts = ast.unparse(node.left), ast.unparse(node.right)
        name = texts[0].removeprefix("sum(").removesuffix(")")
        return name if texts == (f"sum({name})", f"len({name})") else ""
    if not isinstance(node, ast.Call) or last_name(node.func) not in _AVERAGES or node.keywords:
        return ""
    given: ast.AST | None = node.args[0] if len(node.args) == 1 else None
    if given is None and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Call):
        made = node.func.value
        array = last_name(made.func) in ("tensor", "array", "asarray", "stack", "FloatTensor")
        given = made.args[0] if array and made.args else None
    while isinstance(given, ast.Subscript):
        given = given.value
    return given.id if isinstance(given, ast.Name) else ""


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
