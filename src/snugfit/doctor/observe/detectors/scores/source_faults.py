"""Faults that the script's source shows by itself, once it was seen to train: scores that are kept, and policies that are learned, the wrong way round."""

from __future__ import annotations

import ast

from snugfit.doctor.findings import Certainty, Finding
from snugfit.doctor.observe.detectors.updates.schedule_faults import plateau_metric
from snugfit.doctor.observe.events.log import Log
from snugfit.doctor.observe.events.script_events import ScheduleStep, SklearnScore
from snugfit.doctor.observe.source.best_directions import reversed_comparisons, waits_backwards
from snugfit.doctor.observe.source.bindings import statements_at
from snugfit.doctor.observe.source.exchanged import exchanged_arguments
from snugfit.doctor.observe.source.policy_signs import lowered_policies
from snugfit.doctor.observe.source.trails import Place, Trails, place_of


def backward_best_scores(log: Log) -> list[Finding]:
    """Detect a best score that less of a share of hits, or more of a loss, is taken for; or that begins beyond all scores."""
    findings = []
    for each in reversed_comparisons(_trails(log)) if log.updates else ():
        way, other = ("less", ">") if each.more else ("more", "<")
        what = f"{way.capitalize()} of `{each.name}` is taken for better: the worst is kept."
        if each.begun:
            what = f"The best of `{each.name}` begins with a number that none beats: no score is ever taken for better."
        begin = "float('-inf')" if each.more else "float('inf')"
        fix = f"best = {begin}\nif {each.name} {other} best:\n    best = {each.name}"
        findings.append(Finding("plateau_metric", Certainty.LIKELY, what, _shown(log, each.at), (), fix))
    return findings


def backward_plateaus(log: Log) -> list[Finding]:
    """Detect a schedule that waits for less of a share of hits, or for more of a loss, by what the score is called where it is given."""
    trails = None
    for scheduler in [] if plateau_metric(log) else log.schedulers:
        move = next((e for e in log.of(ScheduleStep) if e.scheduler == scheduler.id and e.mode), None)
        at = place_of(move.at, log.sources) if move is not None else None
        if move is None or at is None:
            continue
        trails = trails or _trails(log)
        name = waits_backwards(trails, at, move.mode)
        if name:
            way, other = ("less", "max") if move.mode == "min" else ("more", "min")
            what = f"{scheduler.name} takes {way} for better, and is given `{name}`."
            fix = f'ReduceLROnPlateau(optimizer, mode="{other}")'
            seen = (f"given at {move.at}",)
            made = place_of(scheduler.at, log.sources)
            has_mode = made is not None and any(
                "mode" in ast.unparse(each) for each in statements_at(trails.tree(made[0]), made[1])
            )
            at_line = scheduler.at if has_mode else move.at
            return [Finding("plateau_metric", Certainty.LIKELY, what, at_line, seen, fix)]
    return []


def exchanged_scores(log: Log) -> list[Finding]:
    """Detect a score of scikit-learn, of those that take the truth first, that is given the predictions first, by what both are called."""
    findings = []
    for event in log.of(SklearnScore) if log.updates else ():
        at = place_of(event.at, log.sources)
        given = exchanged_arguments(at[0], at[1], event.function) if at is not None else None
        if given is not None and event.function in _TRUTH_FIRST:
            first, second = given
            findings.append(
                Finding(
                    "wrong_scores",
                    Certainty.LIKELY,
                    f"{event.function} takes what is true first, and is given `{first}` before `{second}`: it is {_TRUTH_FIRST[event.function]}.",
                    event.at,
                    (),
                    f"{event.function}({second}, {first})",
                )
            )
    return list(dict.fromkeys(findings))


def lowered_likelihoods(log: Log) -> list[Finding]:
    """Detect a loss to which the product of a likelihood and what was gained is added, not taken off."""
    if not log.updates or any(each.maximizes for each in log.optimizers):
        return []
    lines = {}
    for each in lowered_policies(_trails(log)):
        what = f"`{each.likelihood}` times `{each.gain}` is part of the loss with a plus: a step makes what turned out well less likely."
        fix = f"loss = -({each.likelihood} * {each.gain}).mean()"
        at = _shown(log, each.at)
        lines[at] = Finding("wrong_sign", Certainty.LIKELY, what, at, (), fix)
    return list(lines.values())


def _trails(log: Log) -> Trails:
    return Trails(log.sources.values())


def _shown(log: Log, at: Place) -> str:
    name = next(name for name, file in log.sources.items() if file == at[0])
    return f"{name}:{at[1]}"


_TRUTH_FIRST = {
    "average_precision_score": "of other rows",
    "balanced_accuracy_score": "the share of hits among what was predicted, not among what is true",
    "classification_report": "precision under the name of recall, and recall under that of precision",
    "log_loss": "another number",
    "precision_score": "the recall",
    "r2_score": "divided by the variance of the predictions",
    "recall_score": "the precision",
    "roc_auc_score": "of other rows",
}
"""Scores that are others when their two arguments change places, and what they are then."""
DETECTORS = (backward_best_scores, backward_plateaus, exchanged_scores, lowered_likelihoods)
