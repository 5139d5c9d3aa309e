"""Statements that take rows which are scored, scale them, or take their targets, followed back through a script's source from where that was seen."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping

from snugfit.doctor.observe.log import Log
from snugfit.doctor.observe.run_events import ScaledAlone
from snugfit.doctor.observe.script_events import Forward, LabelColumn
from snugfit.doctor.observe.script_syntax import last_name
from snugfit.doctor.observe.trails import Place, Trails, place_of

LEAST_SHARED = 0.02
MOST_LINES = 4
_OF_TRAINING = re.compile(r"train|split|test|valid|mode|augment", re.IGNORECASE)
_STATISTICS = re.compile(r"-.*\.?(mean|min)\(.*/.*\.?(std|max|ptp)\(")
_SCALERS = frozenset(["normalize", "standardize", "standardise", "normalise"])
_TARGETS = re.compile(r"^[yt](_\w+)?$|label|target|truth|future|next", re.IGNORECASE)
_DOUBLES = re.compile(
    r"concat|resample|\.sample\(|replace=True|repeat|vstack|append|augment|oversampl|SMOTE", re.IGNORECASE
)
_SPLITS = ("train_test_split", "random_split", "split", "sample_split")


def ways_of_rows(log: Log, trails: Trails, files: Mapping[str, str]) -> dict[tuple[str, str], Place]:
    """Return the statements that take rows which are scored, scale them or take their targets, by the pitfall and the line at which that is seen.

    Args:
        files: the script's files by the names under which they are shown.
    """
    lines: dict[tuple[str, str], Place] = {}

    def note(pitfall: str, seen: str, find: Callable[[Place], Place | None]) -> None:
        at = place_of(seen, files)
        line = find(at) if at else None
        if line is not None:
            lines.setdefault((pitfall, seen), line)

    loaders = {each.id: each for each in log.loaders}
    taught = next((place_of(each.at, files) for each in log.of(Forward) if each.grad), None)
    for overlap in log.overlaps:
        loader = loaders.get(overlap.loader)
        scored = place_of(overlap.at if loader is None else loader.at, files)
        if overlap.shared > LEAST_SHARED * overlap.rows and not overlap.cut_at and scored and taught:
            line = line_of_shared_rows(trails, scored, taught)
            lines |= {("leakage", overlap.at): line} if line else {}
    for own in dict.fromkeys(each.at for each in log.of(ScaledAlone) if not each.grad):
        note("other_statistics", own, lambda at: line_of_scaling(trails, at))
    if trails.has_under(_OF_TRAINING, _scales):
        scored_at = dict.fromkeys(each.at for each in log.of(Forward) if not each.grad and each.scale)
        for seen in list(scored_at)[:MOST_LINES]:
            note("other_statistics", seen, lambda at: line_of_scaling(trails, at, in_training=True))
    for column in list(log.of(LabelColumn))[:1]:
        note("leakage", column.at, lambda at: line_of_targets(trails, at))
    return lines


def line_of_scaling(trails: Trails, at: Place, *, in_training: bool = False) -> Place | None:
    """Return the statement that scales what a line reads by statistics; None where the source does not show it.

    Args:
        in_training: only one under a condition on whether the rows are those of the training.
    """
    for step in trails.back(*at, wide=True):
        text = ast.unparse(step.statement)
        if in_training:
            scales = isinstance(step.statement, ast.Assign) and _scales(step.statement)
            if scales and trails.is_under(step.file, step.line, _OF_TRAINING):
                return step.file, step.line
        elif (
            "fit_transform(" in text
            or _STATISTICS.search(text)
            or any(map(_scales, trails.called_in(step.statement)))
        ):
            return step.file, step.line
    return None


def _scales(node: ast.AST) -> bool:
    """Return whether something is taken away and what is left is divided, or a method that scales is called."""
    operators = {type(each.op) for each in ast.walk(node) if isinstance(each, ast.BinOp)}
    methods = {last_name(each.func).lower() for each in ast.walk(node) if isinstance(each, ast.Call)}
    return {ast.Sub, ast.Div} <= operators or bool(methods & _SCALERS)


def line_of_targets(trails: Trails, at: Place) -> Place | None:
    """Return the statement that takes the targets, which a line compares with predictions, out of a table or a series; None where the source does not show it."""
    steps = trails.back(*at, wide=True)
    for step in steps:
        first = step
        while first.before >= 0:
            first = steps[first.before]
        taken = isinstance(step.statement, ast.Assign) and any(
            isinstance(each, ast.Subscript) and isinstance(each.ctx, ast.Load)
            for each in ast.walk(step.statement)
        )
        if (
            taken
            and _TARGETS.search(step.name)
            and _TARGETS.search(first.name)
            and trails.gives_rows(step.file, step.line)
        ):
            return step.file, step.line
    return None


def line_of_shared_rows(trails: Trails, scored: Place, trained: Place) -> Place | None:
    """Return the statement at which rows that are scored leave the way of those that are trained on: which takes them where it should not; None where the source does not show it.

    Where both come from one split, it is what that is made of, if that holds rows twice.
    """
    own, others = trails.back(*scored), trails.back(*trained)
    known = {each.key for each in others}
    lines = {(each.file, each.line) for each in others}
    shared = next((each for each in own if each.key in known), None)
    if shared is None or shared.before < 0:
        return None
    last = own[shared.before]
    if (last.file, last.line) in lines and _is_split(last.statement):
        return (shared.file, shared.line) if _DOUBLES.search(ast.unparse(shared.statement)) else None
    return last.file, last.line


def _is_split(statement: ast.stmt) -> bool:
    return any(isinstance(each, ast.Call) and last_name(each.func) in _SPLITS for each in ast.walk(statement))
