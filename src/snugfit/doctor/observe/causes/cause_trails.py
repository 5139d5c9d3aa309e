"""Statements that take rows which are scored, scale them, or take their targets, followed back through a script's source from where that was seen."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping

from snugfit.doctor.observe.causes.evaluations import line_of_evaluation, line_of_training
from snugfit.doctor.observe.events.log import Log
from snugfit.doctor.observe.events.log_views import served_unscaled, training_loaders
from snugfit.doctor.observe.events.run_events import ScaledAlone
from snugfit.doctor.observe.events.script_events import Forward, LabelColumn
from snugfit.doctor.observe.source.bindings import heads_of, statements_at
from snugfit.doctor.observe.source.script_syntax import around, last_name, names_in, own_nodes
from snugfit.doctor.observe.source.trails import Place, Step, Trails, place_of

LEAST_SHARED = 0.02
MOST_LINES = 4
_OF_TRAINING = re.compile(r"train|split|test|valid|mode|augment", re.IGNORECASE)
_STATISTICS = re.compile(r"-.*\.?(mean|min)\(.*/.*\.?(std|max|ptp)\(")
_SCALERS = frozenset(["normalize", "standardize", "standardise", "normalise"])
_TARGETS = re.compile(r"^[yt](_\w+)?$|label|target|truth|future|next", re.IGNORECASE)
_DOUBLES = re.compile(
    r"concat|resample|\.sample\(|replace=True|repeat|vstack|append|augment|oversampl|SMOTE", re.IGNORECASE
)
_STATISTIC = re.compile(r"\.(mean|std|min|max|var|median|quantile)\(")
_JOINS = frozenset(["cat", "concat", "concatenate", "hstack", "column_stack", "c_"])
_ROW = ("__getitem__", "__iter__")
_AUGMENTS = re.compile(r"\brand|augment|flip|crop|jitter|noise|rotate|spec_aug", re.IGNORECASE)
_SETTING = re.compile(r"self\.\w*(train|augment|transform|tf\b|aug|mode|split|random)", re.IGNORECASE)
_TRANSFORM = re.compile(r"\.dataset\.\w*(transform|tf|aug)\w*$")
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
    handing = [place_of(each.at, files) for each in training_loaders(log)]
    taught = next(iter(handing), None) or next(
        (place_of(each.at, files) for each in log.of(Forward) if each.grad), None
    )
    for overlap in log.overlaps:
        loader = loaders.get(overlap.loader)
        scored = place_of(overlap.at if loader is None else loader.at, files)
        if overlap.shared > LEAST_SHARED * overlap.rows and not overlap.cut_at and scored and taught:
            learned = taught
            if scored == taught:  # a helper that both call
                scored, learned = line_of_evaluation(trails, scored), line_of_training(trails, taught)
            line = line_of_shared_rows(trails, scored, learned)
            lines |= {("leakage", overlap.at): line} if line else {}
    for own in dict.fromkeys(each.at for each in log.of(ScaledAlone) if not each.grad):
        note("other_statistics", own, lambda at: line_of_scaling(trails, at))
    if trails.has_under(_OF_TRAINING, _scales):
        scored_at = dict.fromkeys(each.at for each in log.of(Forward) if not each.grad and each.scale)
        for seen in list(scored_at)[:MOST_LINES]:
            note("other_statistics", seen, lambda at: line_of_scaling(trails, at, in_training=True))
    for loader in log.loaders:
        if loader.redrawn + loader.other_masks and not trails.sets(_TRANSFORM):
            made = place_of(loader.at, files)
            at = line_of_augmentation(trails, made) if made else None
            scored_by = [each.at for each in log.of(Forward) if not each.grad] if at else []
            lines |= {("random_validation", each): at for each in scored_by if at}
    for event in served_unscaled(log)[1][:1]:
        note("other_statistics", event.at, lambda at: line_of_input(trails, at))
    for column in list(log.of(LabelColumn))[:1]:
        note("leakage", column.at, lambda at: line_of_targets(trails, at))
    return lines


def line_of_input(trails: Trails, at: Place) -> Place | None:
    """Return the statement that sets what a line gives a model; None where it is made in the line itself."""
    parts = [
        part
        for each in statements_at(trails.tree(at[0]), at[1])
        for head in heads_of(each)
        for part in ast.walk(head)
    ]
    given = [
        part.args[0].id
        for part in parts
        if isinstance(part, ast.Call) and len(part.args) == 1 and isinstance(part.args[0], ast.Name)
    ]
    steps = [each for each in trails.back(*at) if given and each.name == given[-1]]
    return (steps[0].file, steps[0].line) if steps else None


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


def line_of_augmentation(trails: Trails, made: Place) -> Place:
    """Return the statement by which the rows of a loader, made at this line, are augmented whatever they are for; the loader's own line where a setting says so, which it has got wrong."""
    for step in trails.back(*made, wide=True):
        if _is_split(step.statement):  # of one data set, whose parts have the transform of the whole
            return step.file, step.line
        scope = around(trails.tree(step.file), step.line)[0]
        if getattr(scope, "name", "") not in _ROW:
            continue
        for each in own_nodes(scope):
            if isinstance(each, ast.stmt) and any(_AUGMENTS.search(ast.unparse(e)) for e in heads_of(each)):
                apart = trails.is_under(step.file, each.lineno, _SETTING) or _SETTING.search(
                    ast.unparse(heads_of(each)[0])
                )
                return made if apart else (step.file, each.lineno)
    return made


def line_of_targets(trails: Trails, at: Place) -> Place | None:
    """Return the statement that takes the targets, which a line compares with predictions, out of a table or a series; None where the source does not show it."""
    steps = trails.back(*at, wide=True)
    for step in steps:
        if _joins_targets(step):
            return step.file, step.line
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


def _joins_targets(step: Step) -> bool:
    """Return whether a statement puts targets beside other columns, in what is no target itself."""
    joins = [
        each
        for each in ast.walk(step.statement)
        if isinstance(each, ast.Call) and last_name(each.func) in _JOINS and each.args
    ]
    parts = [part for each in joins for part in getattr(each.args[0], "elts", ())]
    names = [next(iter(sorted(names_in(part) - {"np", "torch", "pd"})), "") for part in parts]
    of_targets = [bool(_TARGETS.search(name)) for name in names if name]
    return any(of_targets) and not all(of_targets) and not _TARGETS.search(step.name)


def line_of_shared_rows(trails: Trails, scored: Place, trained: Place) -> Place | None:
    """Return the statement at which rows that are scored leave the way of those that are trained on: which takes them where it should not; None where the source does not show it.

    Where both come from one split, it is what that is made of, if that holds rows twice.
    """
    own, others = trails.back(*scored), trails.back(*trained)
    known = {each.key for each in others}
    lines = {(each.file, each.line) for each in others}
    shared = next((each for each in own if each.key in known and not _STATISTIC.search(_text(each))), None)
    if shared is None:
        return None
    if shared.before < 0:
        return _line_of_places(own, trails, scored, trained, shared.name)
    last = own[shared.before]
    if (last.file, last.line) in lines and _is_split(last.statement):
        return (shared.file, shared.line) if _DOUBLES.search(ast.unparse(shared.statement)) else None
    places = _places_of(trails, (last.file, last.line), shared.name)
    picked = [
        e for e in own if e.name in places and e.key not in known and isinstance(e.statement, ast.Assign)
    ]
    return (picked[0].file, picked[0].line) if picked else (last.file, last.line)


def _text(step: Step) -> str:
    return ast.unparse(step.statement)


def _line_of_places(
    own: list[Step], trails: Trails, scored: Place, trained: Place, name: str
) -> Place | None:
    """Return the statement that sets the places by which rows that are scored are taken of what others train on; the line that trains on all of it; None where neither shows."""
    places, others = (_places_of(trails, at, name) for at in (scored, trained))
    if places and not others:
        return trained
    return next(((each.file, each.line) for each in own if each.before < 0 and each.name in places), None)


def _places_of(trails: Trails, at: Place, name: str) -> set[str]:
    """Return the names by which a line takes places of what has this name, as in `rows[held_out]`."""
    return {
        inner
        for statement in statements_at(trails.tree(at[0]), at[1])
        for each in ast.walk(statement)
        if isinstance(each, ast.Subscript)
        and last_name(each.value) == name
        and not isinstance(each.slice, ast.Slice)
        for inner in names_in(each.slice)
    }


def _is_split(statement: ast.stmt) -> bool:
    return any(isinstance(each, ast.Call) and last_name(each.func) in _SPLITS for each in ast.walk(statement))
