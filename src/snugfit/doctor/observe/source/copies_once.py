"""Target networks that a script's source copies from the model that learns before its training, and never again."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from snugfit.doctor.observe.source.idle_lines import names_average, writes_weights
from snugfit.doctor.observe.source.script_syntax import Function, around, last_name, syntax_of

_TARGET = re.compile(r"(^|_)(target|targ|tgt)(_|$)|^target[A-Z]", re.IGNORECASE)
MOST_CALLS = 4
"""Functions that call each other up to where the script begins."""


class Copy(NamedTuple):
    """The line that copies a model, and what the script calls the copy."""

    file: str
    line: int
    name: str


@lru_cache(maxsize=8)
def target_copied_once(files: tuple[str, ...]) -> Copy | None:
    """Return where a target network gets the weights of another model, if no loop does that, and nothing that a loop calls; None else."""
    trees = {file: syntax_of(file) for file in files}
    nodes = [(file, each) for file, tree in trees.items() for each in ast.walk(tree)]
    if any(names_average(each) for _, each in nodes):
        return None
    copies: list[Copy] = []
    for file, node in nodes:
        if not (writes_weights(node) or _copies(node)):
            continue
        places = _places(trees, file, node, MOST_CALLS)
        if places is None:
            return None
        copies += [
            Copy(at, getattr(each, "lineno", 0), name) for at, each in places for name in _targets(each)
        ]
    return copies[0] if copies else None


def _copies(node: ast.AST) -> bool:
    """Return whether a node loads the weights of another model, or copies a whole one.

    >>> texts = ("a.load_state_dict(b.state_dict())", "tgt_net = copy.deepcopy(net)", "best = copy.deepcopy(net.state_dict())", "a.load_state_dict(torch.load(f))")
    >>> [any(map(_copies, ast.walk(ast.parse(text)))) for text in texts]
    [True, True, False, False]
    """
    if isinstance(node, ast.Call) and last_name(node.func) == "load_state_dict":
        return any("state_dict()" in ast.unparse(each) for each in node.args)
    if not isinstance(node, ast.Assign) or "deepcopy(" not in ast.unparse(node.value):
        return False
    return "state_dict" not in ast.unparse(node.value) and bool(_targets(node))


def _targets(node: ast.AST) -> list[str]:
    """Return the names of target networks that a copy is made under, or that is put into, or that a function which does it is given."""
    named: list[ast.AST] = []
    if isinstance(node, ast.Assign):
        named = list(node.targets)
    elif isinstance(node, ast.Call):
        named = [*node.args, *([node.func.value] if isinstance(node.func, ast.Attribute) else [])]
    elif isinstance(node, ast.For):
        named = list(ast.walk(node.iter))
    return [name for each in named if _TARGET.search(name := last_name(each))]


def _places(
    trees: dict[str, ast.Module], file: str, node: ast.AST, most: int
) -> list[tuple[str, ast.AST]] | None:
    """Return a node, and the calls of the functions that it stands in, if none of them is in a loop, and all are called by the script itself; None else."""
    scope, loops = around(trees[file], getattr(node, "lineno", 0))
    if any(each is not node for each in loops) or isinstance(scope, ast.Lambda):
        return None
    if isinstance(scope, ast.Module) or getattr(scope, "name", "") == "__init__":
        return [(file, node)]
    if not isinstance(scope, Function) or not most:
        return None
    places: list[tuple[str, ast.AST]] = [(file, node)]
    for other, call in _references(trees, scope.name):
        above = _places(trees, other, call, most - 1) if isinstance(call, ast.Call) else None
        if above is None:
            return None
        places = [*above, *places]
    return places if len(places) > 1 else None


def _references(trees: dict[str, ast.Module], name: str) -> Iterator[tuple[str, ast.AST]]:
    """Yield the calls of a function by its name, and what else reads that."""
    for file, tree in trees.items():
        called = {id(each.func) for each in ast.walk(tree) if isinstance(each, ast.Call)}
        for each in ast.walk(tree):
            if (isinstance(each, ast.Call) and last_name(each.func) == name) or (
                (
                    isinstance(each, ast.Name | ast.Attribute)
                    and last_name(each) == name
                    and id(each) not in called
                )
                or (isinstance(each, ast.Constant) and each.value == name)
            ):
                yield file, each
