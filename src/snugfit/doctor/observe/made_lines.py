"""Lines that make what is found elsewhere, read off a script's source: the reshape, the targets, the test of the rate before the loss or the training that shows it."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

from snugfit.doctor.observe.log import Log
from snugfit.doctor.observe.script_events import FarTargets, Forward, Loss, WrongAxis
from snugfit.doctor.observe.script_syntax import around, last_assignment, last_name, own_nodes
from snugfit.doctor.observe.term_events import ConstantTerm, PulledTogether
from snugfit.doctor.observe.trails import Place, Trails, place_of, statements_at

NEARLY_ALL, LARGE, MOST_LINES = 0.9, 10.0, 4
"""Labels that equal inputs, the size of inputs that were not scaled, and lines that are followed back."""
_RESHAPES = ("reshape", "view", "flatten")
_NUMBERS = re.compile(
    r"\.float\(\)|from_numpy\(|astype\(|as_tensor\(|tensor\(|frombuffer\(|ToTensor|Image\.open"
)
_TARGETS = re.compile(r"^[yt](_\w+)?$|label|target|truth|future|price|energ", re.IGNORECASE)
_HANDED = ("next", "to", "cuda", "cpu")
"""Calls that give targets which are there already."""
_Find = Callable[[Trails, Place], Place | None]


def lines_of_making(log: Log, trails: Trails, files: dict[str, str]) -> Iterator[tuple[str, Place]]:
    """Yield the pitfall with the line at which it is found, and the place that makes what is found there.

    Args:
        files: the script's files by the names under which they are shown.
    """

    def each_of(pitfall: str, lines: list[str], find: _Find) -> Iterator[tuple[str, Place]]:
        for at in dict.fromkeys(lines):
            seen = place_of(at, files)
            made = find(trails, seen) if seen else None
            if made is not None and made != seen:
                yield f"{pitfall} {at}", made

    yield from each_of("wrong_axis", [each.at for each in log.of(WrongAxis)], line_of_reshape)
    yield from each_of("constant_term", [each.at for each in log.of(ConstantTerm)], line_of_gradients)
    yield from each_of(
        "target_gradients", [each.at for each in log.of(PulledTogether)], line_that_gives_sides
    )
    copies = [each.at for each in log.of(Loss) if each.grad and each.copies >= NEARLY_ALL]
    yield from each_of("shifted_labels", copies, line_of_equal_labels)
    if any(model.input_scale >= LARGE for model in log.models):
        passes = [each.at for each in log.of(Forward) if each.grad and each.scale >= LARGE]
        yield from each_of("unscaled_inputs", passes[:MOST_LINES], line_of_raw_rows)
    yield from each_of("unscaled_targets", [each.at for each in log.of(FarTargets)], line_of_raw_targets)
    for earlier in log.optimizers:
        for later in log.optimizers:
            one, other = place_of(earlier.at, files), place_of(later.at, files)
            shared = set(earlier.parameters) & set(later.parameters)
            if (
                one
                and other
                and earlier.id < later.id
                and shared
                and _are_of_two_functions(trails, one, other)
            ):
                yield f"range_test_kept {later.at}", one
    if len(log.optimizers) > 1:
        unfrozen = [(file, line) for file in files.values() for line in _unfreezing(trails.tree(file))]
        if len(unfrozen) == 1:
            yield "group_holes", unfrozen[0]


def line_of_reshape(trails: Trails, seen: Place) -> Place | None:
    """Return the line that reshaped what a loss gets first, where that is a name."""
    tree = trails.tree(seen[0])
    for statement in statements_at(tree, seen[1]):
        calls = [each for each in ast.walk(statement) if isinstance(each, ast.Call) and each.args]
        scores = next((each.args[0] for each in calls if isinstance(each.args[0], ast.Name)), None)
        made = (
            last_assignment(around(tree, seen[1])[0], scores.id, seen[1])
            if isinstance(scores, ast.Name)
            else None
        )
        if made is not None and last_name(getattr(made.value, "func", made)) in _RESHAPES:
            return seen[0], made.lineno
    return None


def line_of_gradients(trails: Trails, seen: Place) -> Place | None:
    """Return the line that takes the gradients of which a term is made, without a graph of theirs."""
    for step in trails.back(*seen):
        for each in ast.walk(step.statement):
            if not isinstance(each, ast.Call) or not ast.unparse(each.func).endswith("autograd.grad"):
                continue
            if all(keyword.arg != "create_graph" for keyword in each.keywords):
                return step.file, step.line
    return None


def line_that_gives_sides(trails: Trails, seen: Place) -> Place | None:
    """Return the line at which the only model that gives so many values at once gives those that a loss compares."""
    for step in trails.back(*seen):
        names = step.statement.targets[0] if isinstance(step.statement, ast.Assign) else None
        if isinstance(names, ast.Tuple) and isinstance(getattr(step.statement, "value", None), ast.Call):
            given = [
                (file, each.lineno)
                for file, forward in trails.functions("forward")
                for each in own_nodes(forward)
                if isinstance(each, ast.Return)
                and isinstance(each.value, ast.Tuple)
                and len(each.value.elts) == len(names.elts)
            ]
            if len(given) == 1:
                return given[0]
    return None


def line_of_equal_labels(trails: Trails, seen: Place) -> Place | None:
    """Return the line of a function that gives two values made alike, as inputs and labels are that were to be one place apart."""
    for file, function in sorted(trails.functions(), key=lambda each: each[0] != seen[0]):
        given = [each.value for each in own_nodes(function) if isinstance(each, ast.Return)]
        for pair in (each for each in given if isinstance(each, ast.Tuple) and len(each.elts) == 2):
            names = [each.id for each in pair.elts if isinstance(each, ast.Name)]
            made = [last_assignment(function, name, pair.lineno) for name in names]
            first, second = made if len(made) == 2 else (None, None)
            if first is None or second is None or first is second:
                continue
            taken = ast.unparse(second.value)
            if taken in (ast.unparse(first.value), names[0], f"{names[0]}.clone()"):
                return file, second.lineno
    return None


def line_of_raw_rows(trails: Trails, seen: Place) -> Place | None:
    """Return the line of a data set of the script's that makes numbers of what it holds, for a row of which a model is given."""
    for step in trails.back(*seen, rows=True):
        if trails.gives_rows(step.file, step.line) and _NUMBERS.search(ast.unparse(step.statement)):
            return step.file, step.line
    return None


def line_of_raw_targets(trails: Trails, seen: Place) -> Place | None:
    """Return the line that makes the targets, among others, which a loss compares with predictions."""
    for step in trails.back(*seen, rows=True):
        value = step.statement.value if isinstance(step.statement, ast.Assign) else None
        if isinstance(value, ast.Call):
            made = last_name(value.func) not in _HANDED
        else:
            made = isinstance(value, ast.Tuple) and any(
                isinstance(each, ast.Call) for each in ast.walk(value)
            )
        if made and _TARGETS.search(step.name):
            return step.file, step.line
    return None


def _are_of_two_functions(trails: Trails, one: Place, other: Place) -> bool:
    """Return whether two lines stand in two functions, of which the second knows nothing of what the first has done."""
    scopes = [around(trails.tree(file), line)[0] for file, line in (one, other)]
    return scopes[0] is not scopes[1] and all(isinstance(each, ast.FunctionDef) for each in scopes)


def _unfreezing(tree: ast.AST) -> list[int]:
    """Return the lines that set `requires_grad` to true."""
    return [
        each.lineno
        for each in ast.walk(tree)
        if isinstance(each, ast.Assign)
        and last_name(each.targets[0]) == "requires_grad"
        and isinstance(each.value, ast.Constant)
        and each.value.value is True
    ]
