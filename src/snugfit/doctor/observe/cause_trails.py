"""Lines that decide what a finding is about, followed back through a script's source from the line at which it was seen."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable

from snugfit.doctor.observe.library_lines import (
    line_of_shared_transform,
    line_of_unscaled_loss,
    line_that_cuts,
    line_that_keeps,
    line_that_pads_labels,
)
from snugfit.doctor.observe.log import Log
from snugfit.doctor.observe.made_lines import lines_of_making
from snugfit.doctor.observe.run_events import ScaledAlone
from snugfit.doctor.observe.script_events import Forward, GraphKept, LabelColumn
from snugfit.doctor.observe.script_syntax import last_name, syntax_of
from snugfit.doctor.observe.text_events import Labels, MaskedTokens
from snugfit.doctor.observe.trails import Place, Trails, place_of
from snugfit.doctor.observe.watchers.watch_log import shown

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


def decided_lines(log: Log, sources: list[str]) -> dict[str, str]:
    """Return the lines that decide what is seen elsewhere, each by the pitfall and the line of what was seen, or by the pitfall alone."""
    files = {str(shown(file)): file for file in sources}
    trails = Trails(sources)
    made = lines_of_making(log, trails, files)
    lines = {pitfall: f"{shown(file)}:{line}" for pitfall, (file, line) in made}
    return {**lines, **_of_libraries(log, files), **_of_rows(log, trails, files)}


def _of_libraries(log: Log, files: dict[str, str]) -> dict[str, str]:
    """Return lines that decide what a library's model or trainer is given, by the pitfall."""
    labels, tokens = list(log.of(Labels)), list(log.of(MaskedTokens))
    bare = sum(each.bare for each in labels)
    sought: dict[str, Callable[[ast.Module], int]] = {
        "accumulation": line_of_unscaled_loss,
        "random_validation": line_of_shared_transform,
    }
    if any(not _keeps(each.at, files) for each in log.of(GraphKept)):
        sought["growing_graph"] = line_that_keeps
    if bare and bare == sum(each.cut for each in labels):
        sought["ignored_labels"] = line_that_cuts
    if any(each.by_mask and each.scored_padding for each in tokens):
        sought["scored_padding"] = line_that_pads_labels
    lines: dict[str, str] = {}
    for file in files.values():
        for pitfall, line_for in sought.items():
            line = line_for(syntax_of(file))
            if line:
                lines.setdefault(pitfall, f"{shown(file)}:{line}")
    return lines


def _keeps(at: str, files: dict[str, str]) -> bool:
    """Return whether a line adds something to a sum or to a list."""
    place = place_of(at, files)
    if place is None:
        return True
    parts = [each for each in ast.walk(syntax_of(place[0])) if getattr(each, "lineno", 0) == place[1]]
    fills = any(
        isinstance(each, ast.Call) and last_name(each.func) in ("append", "extend", "update", "add")
        for each in parts
    )
    return fills or any(isinstance(each, ast.AugAssign) for each in parts)


def _of_rows(log: Log, trails: Trails, files: dict[str, str]) -> dict[str, str]:
    """Return the statements that take rows which are scored, or targets, by the pitfall and the line at which that is seen."""
    shared = [each for each in log.overlaps if each.shared > LEAST_SHARED * each.rows and not each.cut_at]
    columns = list(log.of(LabelColumn))[:1]
    scored_at = list(dict.fromkeys(each.at for each in log.of(Forward) if not each.grad and each.scale))[
        :MOST_LINES
    ]
    alone = any(not each.grad for each in log.of(ScaledAlone))
    if not (shared or columns or alone or scored_at):
        return {}
    loaders = {each.id: each for each in log.loaders}
    taught = next((place_of(each.at, files) for each in log.of(Forward) if each.grad), None)
    line: Place | None
    lines: dict[str, str] = {}
    for overlap in shared:
        loader = loaders.get(overlap.loader)
        scored = place_of(overlap.at if loader is None else loader.at, files)
        line = line_of_shared_rows(trails, scored, taught) if scored and taught else None
        if line is not None:
            lines[f"leakage {overlap.at}"] = f"{shown(line[0])}:{line[1]}"
    for own in dict.fromkeys(each.at for each in log.of(ScaledAlone) if not each.grad):
        at = place_of(own, files)
        line = line_of_scaling(trails, at) if at else None
        if line is not None:
            lines[f"other_statistics {own}"] = f"{shown(line[0])}:{line[1]}"
    for seen_at in scored_at if trails.has_under(_OF_TRAINING, _scales) else ():
        at = place_of(seen_at, files)
        line = line_of_scaling(trails, at, in_training=True) if at else None
        if line is not None:
            lines.setdefault(f"other_statistics {seen_at}", f"{shown(line[0])}:{line[1]}")
    for column in columns:
        at = place_of(column.at, files)
        line = line_of_targets(trails, at) if at else None
        if line is not None:
            lines[f"leakage {column.at}"] = f"{shown(line[0])}:{line[1]}"
    return lines


def line_of_scaling(trails: Trails, at: Place, *, in_training: bool = False) -> Place | None:
    """Return the statement that scales what a line reads by statistics; None where the source does not show it.

    Args:
        in_training: only one under a condition on whether the rows are those of the training.
    """
    for step in trails.back(*at, rows=True):
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
    steps = trails.back(*at, rows=True)
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
