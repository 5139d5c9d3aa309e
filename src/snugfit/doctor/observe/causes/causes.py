"""The way from the statement that causes a pitfall to the line at which it was seen: back through the script's source, until a statement is of the pitfall's kind."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import replace

from snugfit.doctor.findings import Finding
from snugfit.doctor.observe.causes.cause_kinds import KINDS, LOSS, Kind, Test
from snugfit.doctor.observe.causes.cause_trails import ways_of_rows
from snugfit.doctor.observe.causes.evaluations import line_of_evaluation
from snugfit.doctor.observe.events.log import Log
from snugfit.doctor.observe.events.script_events import Forward
from snugfit.doctor.observe.source.bindings import heads_of, parts_of, statements_at
from snugfit.doctor.observe.source.script_syntax import around, last_name, own_nodes, reads
from snugfit.doctor.observe.source.trails import Place, Step, Trails, callers_by_line, place_of

MOST_LINES = 3
LEFT_OUT = "ignore_index"
"""What a loss is told where it is made, if the fix is that it is told."""
_MADE = re.compile(r"(CrossEntropy|NLL)\w*$|^[A-Z]\w*Loss$")
_NUMBER = re.compile(r"batch_?(i|id|idx|index|num|number)")
_OF_EVALUATIONS = frozenset(["train_mode", "other_statistics", "random_validation"])
"""Pitfalls that are seen in passes of an evaluation, which a helper may make for the training too."""


class Causes:
    """The ways from what causes a log's findings to where they were seen, in the script's files as they are now."""

    def __init__(self, log: Log) -> None:
        self._files = log.sources
        self._shown = {file: name for name, file in log.sources.items()}
        self._trails = Trails(self._files.values(), callers_by_line(log.callers, self._files))
        self._rows = ways_of_rows(log, self._trails, self._files)
        learning, scoring = ({e.at for e in log.of(Forward) if e.grad is way} for way in (True, False))
        self._shared_lines = learning & scoring

    def placed(self, finding: Finding) -> Finding:
        """Return a finding at the line that causes it, with the way from there to where it was seen."""
        seen = place_of(finding.where, self._files)
        if seen is None:
            return finding
        cause = self._rows.get((finding.pitfall, finding.where))
        here = KINDS.get(finding.pitfall, Kind()).here
        shared = finding.pitfall in _OF_EVALUATIONS and finding.where in self._shared_lines
        if cause is None and shared and not _line_in(_meant(self._trails, seen, None), here, ""):
            cause = line_of_evaluation(self._trails, seen, switches=finding.pitfall == "train_mode")
        if cause is None and LEFT_OUT in finding.fix:
            cause = line_of_loss(self._trails, seen)
        if cause is None and finding.pitfall == "mismatched_rows":
            cause = line_of_count(self._trails, seen)
        way = [cause, seen] if cause else way_of(self._trails, finding.pitfall, seen)
        lines = tuple(dict.fromkeys(f"{self._shown[file]}:{line}" for file, line in way))
        return replace(finding, where=lines[0], way=lines) if len(lines) > 1 else finding


def way_of(trails: Trails, pitfall: str, seen: Place) -> list[Place]:
    """Return the lines from the statement that causes what was seen to where it was seen, at most three, the cause first; where no statement is of its kind, the line alone."""
    kind = KINDS.get(pitfall, Kind())
    own = _meant(trails, seen, kind.side)
    if _line_in(_meant(trails, seen, None), kind.here, "") or (
        not kind.within and _is_within_model(trails, seen)
    ):
        return [seen]
    start = _differentiated(trails, seen)
    ways = (
        (kind.back, trails.back(*start, wide=True, of=own if start == seen else ()) if kind.back else []),
        (kind.ahead, trails.ahead(*seen) if kind.ahead else []),
    )
    for tests, steps in ways:
        for test in tests:
            if _line_in(own, [test], ""):
                return [seen]
            for place, step in enumerate(steps):
                if _line_of(step, test):
                    first = _first_of(steps, place, test)
                    line = _line_of(first, test)
                    return _shortened([(first.file, line), *_lines(steps, first), seen])
    for file, statement in trails.statements() if kind.anywhere else ():
        line = _line_in(heads_of(statement), kind.anywhere, "")
        if line:
            return [(file, line), seen]
    return [seen]


def _meant(trails: Trails, seen: Place, side: int | None) -> list[ast.AST]:
    """Return what a line reads; where it calls a loss, what that is given on this side alone: predictions, or targets."""
    heads = [head for each in statements_at(trails.tree(seen[0]), seen[1]) for head in heads_of(each)]
    for call in (each for head in heads for each in parts_of(head) if isinstance(each, ast.Call)):
        given = [*call.args, *(each.value for each in call.keywords if each.arg in ("target", "labels"))]
        if side is not None and len(given) > side and len(given) > 1 and LOSS.search(last_name(call.func)):
            return [given[side]]
    return heads


def line_of_loss(trails: Trails, seen: Place) -> Place | None:
    """Return the line that makes the loss which a line calls, without saying which labels count; None where a function computes it, or the source does not show it."""
    calls = [
        part
        for each in statements_at(trails.tree(seen[0]), seen[1])
        for head in heads_of(each)
        for part in parts_of(head)
        if isinstance(part, ast.Call) and LOSS.search(last_name(part.func))
    ]
    for step in trails.back(*seen, wide=True, of=[calls[0].func]) if calls else ():
        for part in (part for head in step.heads for part in parts_of(head)):
            made = isinstance(part, ast.Call) and bool(_MADE.search(last_name(part.func)))
            if made and all(each.arg != LEFT_OUT for each in part.keywords):  # type: ignore[attr-defined]
                return step.file, part.lineno  # type: ignore[attr-defined]
    return None


def line_of_count(trails: Trails, seen: Place) -> Place | None:
    """Return the line that takes what a line reads by the number of a batch, as out of a list that an earlier pass has filled; None without."""
    for step in trails.back(*seen, wide=True):
        loops = around(trails.tree(step.file), step.line)[1]
        counts = {last_name(target) for each in loops for target in _counters(each)}
        for part in (part for head in step.heads for part in parts_of(head)):
            if isinstance(part, ast.Subscript) and isinstance(part.slice, ast.Name):
                number = part.slice.id
                if number in counts or _NUMBER.fullmatch(number):
                    return step.file, step.line
    return None


def _counters(loop: ast.AST) -> list[ast.expr]:
    """Return what counts the passes of a loop over `enumerate(loader)`."""
    over = loop.iter if isinstance(loop, ast.For) else None
    counted = isinstance(over, ast.Call) and last_name(over.func) == "enumerate"
    target = loop.target if counted and isinstance(loop, ast.For) else None
    return target.elts[:1] if isinstance(target, ast.Tuple) else []


def _is_within_model(trails: Trails, seen: Place) -> bool:
    """Return whether a line stands in a forward pass, where a model's own statement is seen itself; a loss that it takes there is one like any other."""
    tree = trails.tree(seen[0])
    scope = around(tree, seen[1])[0]
    calls = [e for each in statements_at(tree, seen[1]) for e in ast.walk(each) if isinstance(e, ast.Call)]
    return getattr(scope, "name", "") == "forward" and not any(
        LOSS.search(last_name(each.func)) for each in calls
    )


def _differentiated(trails: Trails, seen: Place) -> Place:
    """Return the line of the backward pass whose gradients a step uses, where it is seen at the step; else the same line."""
    tree = trails.tree(seen[0])
    calls = [
        (e.lineno, last_name(e.func)) for e in own_nodes(around(tree, seen[1])[0]) if isinstance(e, ast.Call)
    ]
    if (seen[1], "step") not in calls:
        return seen
    return seen[0], max(
        (line for line, name in calls if name == "backward" and line < seen[1]), default=seen[1]
    )


def _first_of(steps: Sequence[Step], place: int, test: Test) -> Step:
    """Return the first of the statements that made one name of itself, one after the other, of which a later one is known."""
    while True:
        name, value = steps[place].name, getattr(steps[place].statement, "value", None)
        if value is None or not reads(value, name):
            return steps[place]
        earlier = [
            k for k, each in enumerate(steps) if each.before == place and each.name == name != "return"
        ]
        place, last = next((k for k in earlier if _line_of(steps[k], test)), place), place
        if place == last:
            return steps[place]


def _line_of(step: Step, test: Test) -> int:
    """Return the line of the part of a step's statement that is sought; 0 without."""
    return step.line if test(step.statement, step.name) else _line_in(step.heads, [test], step.name)


def _line_in(heads: Sequence[ast.AST], tests: Sequence[Test], name: str) -> int:
    parts = [each for head in heads for each in parts_of(head)]
    return next((getattr(each, "lineno", 0) for test in tests for each in parts if test(each, name)), 0)


def _lines(steps: Sequence[Step], step: Step) -> list[Place]:
    lines = []
    while step.before >= 0:
        step = steps[step.before]
        lines.append((step.file, step.line))
    return lines


def _shortened(way: list[Place]) -> list[Place]:
    once = list(dict.fromkeys(way))
    return once if len(once) <= MOST_LINES else [once[0], once[1], once[-1]]
