"""Lines of a script's source whose effect never comes: a learning rate that is only shown, a copy of a model that nothing moves or a condition keeps from moving, a reference that is the model itself."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from snugfit.doctor.observe.source.script_syntax import (
    Loop,
    around,
    last_name,
    names_set_by,
    reads,
    syntax_of,
)

_RATE = re.compile(r"(^|_)(lr|rate)($|_)|learning_?rate", re.IGNORECASE)
_READ_BACK = re.compile(r"get_last_lr|get_lr\(|param_groups|sched", re.IGNORECASE)
_OPTIMIZER = re.compile(r"opt", re.IGNORECASE)
_REFERENCE = re.compile(
    r"^(ref|reference|teacher|target|old|initial|frozen)(_(model|net|policy|network|actor))?$", re.IGNORECASE
)
_WEIGHTS = re.compile(r"parameters\(\)|state_dict\(\)|buffers\(\)")
_AVERAGES = re.compile(
    r"AveragedModel|^update_parameters$|ExponentialMovingAverage|ModelE[mM][aA]V?\d*$|^EMA$"
)
_FOLLOWS = re.compile(
    r"(^|_)(k|key|keys|target|targ|tgt|teacher|momentum|ema|slow|avg|average|shadow)(_|$)|_k$", re.IGNORECASE
)
_CALLED = re.compile(r"^(on_|__)|^forward$|hook|callback|_(begin|start|end)$")
_SHOWS = re.compile(r"print|log|info|debug|write|append|add_scalar|format|postfix|description|update|echo")


class Line(NamedTuple):
    """A line, and the name that it is about."""

    line: int
    name: str


@lru_cache(maxsize=64)
def rate_that_is_only_shown(file: str) -> Line | None:
    """Return the line that computes a learning rate in a loop that steps an optimizer, where all that reads it shows it; None without one.

    A file that writes to `param_groups` anywhere is left alone, and so is a rate that is read back from a schedule.
    """
    tree = syntax_of(file)
    if any(isinstance(each, ast.Attribute) and each.attr == "param_groups" for each in ast.walk(tree)):
        return None
    for loop in (each for each in ast.walk(tree) if isinstance(each, Loop)):
        if not any(map(_is_step, ast.walk(loop))):
            continue
        for each in ast.walk(loop):
            target = each.targets[0] if isinstance(each, ast.Assign) and len(each.targets) == 1 else None
            if (
                isinstance(each, ast.Assign)
                and isinstance(target, ast.Name)
                and _RATE.search(target.id)
                and isinstance(each.value, ast.Call | ast.BinOp | ast.IfExp)
                and not _READ_BACK.search(ast.unparse(each.value))
                and _is_only_shown(tree, target.id)
            ):
                return Line(each.lineno, target.id)
    return None


def _is_step(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "step"
        and bool(_OPTIMIZER.search(ast.unparse(node.func.value)))
    )


def _is_only_shown(tree: ast.Module, name: str) -> bool:
    """Return whether a name is read, and only in what is printed or logged."""
    shown = {
        id(part)
        for each in ast.walk(tree)
        if isinstance(each, ast.JoinedStr)
        or (isinstance(each, ast.Call) and _SHOWS.search(ast.unparse(each.func).rpartition(".")[2]))
        for part in ast.walk(each)
    }
    reads = [
        each
        for each in ast.walk(tree)
        if isinstance(each, ast.Name) and each.id == name and isinstance(each.ctx, ast.Load)
    ]
    return bool(reads) and all(id(each) in shown for each in reads)


@lru_cache(maxsize=64)
def copies_under_a_count(file: str) -> tuple[Line, ...]:
    """Return the lines that copy a model's weights into another one where a count comes to a multiple, and the name of that one."""
    return tuple(_copies(syntax_of(file)))


def _copies(tree: ast.Module) -> Iterator[Line]:
    for condition in (each for each in ast.walk(tree) if isinstance(each, ast.If)):
        counted = any(isinstance(each, ast.Mod) for each in ast.walk(condition.test))
        for each in (part for statement in condition.body for part in ast.walk(statement)) if counted else ():
            if (
                isinstance(each, ast.Call)
                and isinstance(each.func, ast.Attribute)
                and each.func.attr == "load_state_dict"
                and isinstance(each.func.value, ast.Name | ast.Attribute)
                and any("state_dict()" in ast.unparse(given) for given in each.args)
            ):
                owner = each.func.value
                yield Line(each.lineno, owner.attr if isinstance(owner, ast.Attribute) else owner.id)


@lru_cache(maxsize=8)
def movers_never_called(files: tuple[str, ...]) -> tuple[str, Line] | None:
    """Return the file, the line and the name of a function that moves the weights of a copy after those of another model, where nothing calls it and nothing else does the same; None without.

    Methods that a library calls are left alone: those of classes with a base of its own, and those whose names say when they are called.
    """
    trees = {file: syntax_of(file) for file in files}
    nodes = {file: list(ast.walk(tree)) for file, tree in trees.items()}
    every = [each for tree in nodes.values() for each in tree]
    if any(map(names_average, every)) or not any(map(_makes_copy, every)):
        return None
    loops = [
        (file, each)
        for file, tree in nodes.items()
        for each in tree
        if writes_weights(each) or _copies_state(each, trees[file])
    ]
    read = {name for each in every if (name := _referred(each))}
    movers = [(file, _function_around(trees[file], loop, read)) for file, loop in loops]
    idle = [(file, each) for file, each in movers if each is not None and each.name not in read]
    if not idle or len(idle) < len(movers):
        return None
    file, function = idle[0]
    return file, Line(function.lineno, function.name)


def names_average(node: ast.AST) -> bool:
    """Return whether a node names a library's average of weights, which moves by itself."""
    return bool(_AVERAGES.search(last_name(node)))


def writes_weights(node: ast.AST) -> bool:
    """Return whether a node is a loop over the weights of two models that writes to one of them, in place.

    >>> loop = "for p, q in zip(a.parameters(), b.parameters()): {}"
    >>> [writes_weights(ast.parse(loop.format(text)).body[0]) for text in ("p.data.mul_(m).add_(q)", "p.data = q.data", "total += (p - q).norm()")]
    [True, True, False]
    """
    if (
        not isinstance(node, ast.For)
        or not isinstance(node.iter, ast.Call)
        or last_name(node.iter.func) != "zip"
    ):
        return False
    if sum(bool(_WEIGHTS.search(ast.unparse(each))) for each in node.iter.args) < 2:
        return False
    return any(
        (isinstance(each, ast.Call) and last_name(each.func) in ("mul_", "lerp_", "copy_", "add_"))
        or (isinstance(each, ast.Attribute) and each.attr == "data" and isinstance(each.ctx, ast.Store))
        for statement in node.body
        for each in ast.walk(statement)
    )


def _copies_state(node: ast.AST, tree: ast.Module) -> bool:
    """Return whether a node loads the state of one model into another one, other than where models are made."""
    if not isinstance(node, ast.Call) or last_name(node.func) != "load_state_dict":
        return False
    scope, loops = around(tree, node.lineno)
    begins = isinstance(scope, ast.Module) or getattr(scope, "name", "") in ("__init__", "main")
    return any("state_dict()" in ast.unparse(each) for each in node.args) and bool(loops or not begins)


def _referred(node: ast.AST) -> str:
    """Return the name that a node reads, or has as its text; "" without."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    return last_name(node) if isinstance(node, ast.Name | ast.Attribute) else ""


def _makes_copy(node: ast.AST) -> bool:
    """Return whether a node names a whole copy of a model, or what gets its state, as what follows it.

    >>> texts = ("self.key = copy.deepcopy(self.query).eval()", "target.load_state_dict(net.state_dict())", "best_ema = copy.deepcopy(net.state_dict())", "reference = deepcopy(net)")
    >>> [any(map(_makes_copy, ast.walk(ast.parse(text)))) for text in texts]
    [True, True, False, False]
    """
    text = ast.unparse(node) if isinstance(node, ast.Assign | ast.Call) else ""
    if isinstance(node, ast.Assign) and "deepcopy(" in text and "state_dict" not in text:
        return any(_FOLLOWS.search(last_name(each)) for each in node.targets)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    loads = node.func.attr == "load_state_dict" and "state_dict()" in text
    return loads and bool(_FOLLOWS.search(last_name(node.func.value)))


def _function_around(tree: ast.Module, loop: ast.AST, read: set[str]) -> ast.FunctionDef | None:
    """Return the function that a loop stands in, if it is the script's alone to call, and its class is used; None where it is not."""
    scope = around(tree, getattr(loop, "lineno", 0))[0]
    if not isinstance(scope, ast.FunctionDef) or _CALLED.search(scope.name):
        return None
    owner = next(
        (each for each in ast.walk(tree) if isinstance(each, ast.ClassDef) and scope in each.body), None
    )
    bases = {last_name(each) for each in owner.bases} if owner else set()
    marks = {last_name(each.func if isinstance(each, ast.Call) else each) for each in scope.decorator_list}
    used = owner is None or owner.name in read
    known = (
        used
        and bases <= {"Module", "object", "ABC"}
        and marks <= {"no_grad", "inference_mode", "staticmethod"}
    )
    return scope if known else None


@lru_cache(maxsize=64)
def reference_that_learns(file: str) -> Line | None:
    """Return the line that names a model a second time, as what it is compared with, before an optimizer is made of its parameters; None without.

    Nothing where either name is set again behind it.
    """
    tree = syntax_of(file)
    for each in (part for part in ast.walk(tree) if isinstance(part, ast.Assign)):
        target, value = each.targets[0], each.value
        if not (isinstance(target, ast.Name) and isinstance(value, ast.Name) and _REFERENCE.match(target.id)):
            continue
        scope = around(tree, each.lineno)[0]
        later = [part for part in ast.walk(scope) if isinstance(part, ast.stmt) and part.lineno > each.lineno]
        again = any({target.id, value.id} & names_set_by(part) for part in later)
        learns = any(f"({value.id}.parameters()" in ast.unparse(part) for part in later)
        if learns and not again and any(reads(part, target.id) for part in later):
            return Line(each.lineno, f"{target.id} = {value.id}")
    return None
