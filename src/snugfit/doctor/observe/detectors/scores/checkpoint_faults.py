"""Pitfalls of what a script saves: pickles, averages, the best."""

from __future__ import annotations

import ast
import itertools
import re

from snugfit.doctor.findings import Certainty, Finding
from snugfit.doctor.observe.events.log import Log, OptimizerSeen
from snugfit.doctor.observe.events.log_views import is_scored, trained_models
from snugfit.doctor.observe.events.run_events import BestAliased, StaleSave
from snugfit.doctor.observe.events.script_events import Event, Forward, ScheduleStep, Step
from snugfit.doctor.observe.events.state_events import (
    Average,
    AverageKept,
    Load,
    Overwritten,
    Restore,
    Resume,
    Save,
    StateRestore,
)
from snugfit.doctor.observe.source.trails import Trails, place_of

LEAST_STEPS = 3
_AVERAGE = re.compile(r"(^|_)(ema|swa|avg|shadow)(_|$)|averag|smoothed", re.IGNORECASE)
_MAKES_AVERAGE = re.compile(r"ema|swa|avg|averag|shadow|smooth|copy|Mean", re.IGNORECASE)
LEAST_UPDATES, FAR_BEHIND, AT_THE_END = 50, 0.05, 0.8
"""An average whose memory is ten times as long as the run has gone less than a twentieth of the way."""
NEXT_TO = 0.25
"""Part of the last update: with a decay of d an average lies d / (1 - d) updates behind those that go one way, so less than a fifth of it is kept."""
BACK = 0.5
MOSTLY = 0.8
"""A new head is drawn on purpose; nearly all matrices are not."""


def pickle(log: Log) -> list[Finding]:
    """Whole modules are written as a pickle, or pickles are read without a limit on what they may run."""
    findings = []
    whole = next((save for save in log.of(Save) if save.what == "module" and save.direct), None)
    if whole is not None:
        findings.append(
            Finding(
                "pickle",
                Certainty.LIKELY,
                "A whole module is pickled: it loads only with this code, and loading it can run any code.",
                whole.at,
                (),
                "torch.save(model.state_dict(), path)\n# or: safetensors.torch.save_file(model.state_dict(), path)",
            )
        )
    unsafe = next((load for load in log.of(Load) if load.direct), None)
    if unsafe is not None:
        findings.append(
            Finding(
                "pickle",
                Certainty.LIKELY,
                "torch.load(weights_only=False) runs whatever code the file contains.",
                unsafe.at,
                (),
                "torch.load(path, weights_only=True)",
            )
        )
    return findings


def averaged_not_saved(log: Log) -> list[Finding]:
    """Detect that what was scored is an average of weights, what was saved is not."""
    saves = [save for save in log.of(Save) if save.weights]
    wrappers = {model.id for model in log.models if model.averaged_of}
    restored = {event.weights for event in log.of(Restore)}
    raw = {event.weights for event in log.evaluations() if event.raw}
    trained = trained_models(log)

    def is_average(event: Forward, place: int) -> bool:
        """Return whether it is an average: a model of its own; or in the trained model, and no state of the training that was looked at before."""
        if event.module in wrappers:
            return True
        loaded = event.weights in restored and (event.module not in trained or event.weights in raw)
        return not loaded and is_scored(log.events, place)

    scored = [
        event
        for place, event in enumerate(log.events)
        if isinstance(event, Forward)
        and not (event.grad or event.raw or event.recalibrates)
        and is_average(event, place)
    ]
    averages = [event for event in scored if not any(event.weights in save.weights for save in saves)]
    if not saves or not averages or len(averages) < len(scored):
        return []
    return [
        Finding(
            "averaged_not_saved",
            Certainty.CERTAIN,
            "Averaged weights are scored, and the checkpoint holds the raw ones: the score is not that of the saved model.",
            saves[-1].at,
            (f"the averaged weights are scored at {averages[0].at}",),
            "torch.save(averaged.module.state_dict(), path)",
        )
    ]


def average_stands_still(log: Log) -> list[Finding]:
    """Detect a copy that is scored again and again and saved, and whose weights never move while the model learns."""
    trained = trained_models(log)
    begun = {event.weights for event in log.of(Forward) if event.grad and event.weights}
    averages = {model.id for model in log.models if _AVERAGE.search(model.called)}
    scored: dict[int, list[Forward]] = {}
    for place, event in enumerate(log.events):
        if not isinstance(event, Forward) or event.grad or event.module in trained or not event.weights:
            continue
        if is_scored(log.events, place):
            scored.setdefault(event.module, []).append(event)
    for passes in scored.values():
        updates, weights = {each.update for each in passes}, {each.weights for each in passes}
        saved = [
            save for save in log.saves() if passes[0].weights in save.weights and save.update > min(updates)
        ]
        first = (
            passes[0].weights in begun and passes[0].module in averages
        )  # by its name alone; else a baseline
        if len(updates) >= LEAST_STEPS and len(weights) == 1 and (saved or first):
            return [
                Finding(
                    "average_stands_still",
                    Certainty.LIKELY,
                    f"A copy of the model is scored before {len(updates)} different updates{' and saved' if saved else ''}, and its weights never move.",
                    passes[0].at,
                    (f"saved at {saved[0].at}",) if saved else ("they are those that the model began with",),
                    "for mine, other in zip(average.parameters(), model.parameters(), strict=True):\n    mine.lerp_(other, 1 - decay)",
                )
            ]
    return []


def average_never_moves(log: Log) -> list[Finding]:
    """Detect weights that are put into the model for evaluation after evaluation, and are still those that it began with."""
    begun: dict[int, str] = {}
    passes: dict[int, list[Forward]] = {}
    moved_on = {event.module for event in log.of(AverageKept)}
    for event in log.of(Forward):
        if event.grad and event.weights:
            begun.setdefault(event.module, event.weights)
        elif not (event.grad or event.raw) and event.update and event.weights == begun.get(event.module):
            passes.setdefault(event.module, []).append(event)
    for module, seen in passes.items():
        updates = {each.update for each in seen}
        if module in trained_models(log) and module not in moved_on and len(updates) >= LEAST_STEPS:
            return [
                Finding(
                    "average_stands_still",
                    Certainty.LIKELY,
                    f"Before {len(updates)} different updates weights are put into the model for a pass without a graph, and they are those that it began with.",
                    seen[0].put_at or seen[0].at,
                    ("the training has moved the model since; nothing has moved what is put in",),
                    "average.update(model)   # after each optimizer.step()",
                )
            ]
    return []


def average_by_name(log: Log) -> list[Finding]:
    """Detect a loop over the parameters of a model and of its average that sets a name anew in place of the weights."""
    if not log.moves_nothing_at or not log.updates:
        return []
    return [
        Finding(
            "average_stands_still",
            Certainty.LIKELY,
            "The loop over the parameters of two models computes new ones and puts them into a name: no weight moves.",
            log.moves_nothing_at,
            ("a name that is set in a loop is another value from there on, not the parameter's",),
            "mine.data.lerp_(other.data, 1 - decay)   # in place; or mine.data = decay * mine.data + (1 - decay) * other.data",
        )
    ]


def average_follows(log: Log) -> list[Finding]:
    """Detect a moving average that is next to the model at each evaluation, nearer than its last update: its decay is meant the other way round."""
    trained = trained_models(log)
    near: dict[int, list[Forward]] = {}
    for event in log.of(Forward):
        if not event.grad and event.module not in trained and event.lag >= 0:
            near.setdefault(event.module, []).append(event)
    for passes in near.values():
        updates = {each.update for each in passes}
        if len(updates) >= LEAST_STEPS and all(0 < each.lag < NEXT_TO for each in passes):
            largest = max(each.lag for each in passes)
            return [
                Finding(
                    "average_stands_still",
                    Certainty.LIKELY,
                    f"An average is at most {largest:.1%} of the last update away from the model: it averages nothing.",
                    log.follows_at or passes[0].at,
                    (f"seen before {len(updates)} different updates, first at {passes[0].at}",),
                    "mine.lerp_(other, 1 - decay)   # mine = decay * mine + (1 - decay) * other",
                )
            ]
    return []


def average_far_behind(log: Log) -> list[Finding]:
    """Detect an average that is still next to the first weights when the training is over: its memory is many times as long as the run."""
    if not log.whole or log.updates < LEAST_UPDATES:
        return []
    seen: dict[int, list[Forward]] = {}
    for place, event in enumerate(log.events):
        if isinstance(event, Forward) and event.way > -1 and is_scored(log.events, place):
            seen.setdefault(event.module, []).append(event)
    for passes in seen.values():
        updates, states = {each.update for each in passes}, {each.weights for each in passes}
        last = passes[-1]
        # what is scored in nearly every update gives targets, as a network does that follows slowly on purpose
        rarely = 2 * len(updates) <= log.updates and last.update >= AT_THE_END * log.updates
        if len(updates) > 1 and len(states) > 1 and rarely and last.way < FAR_BEHIND:
            return [
                Finding(
                    "average_stands_still",
                    Certainty.LIKELY,
                    f"An average that is scored has gone {max(last.way, 0.0):.1%} of the way that the model has gone in {log.updates} updates: "
                    "its decay is that of a run many times as long, and it is still what the model began with.",
                    _made_at(log, last.at),
                    (f"scored before {len(updates)} different updates, at {last.at}",),
                    "decay = min(0.999, (1 + updates) / (10 + updates))   # or one whose 1 / (1 - decay) is a tenth of the updates",
                )
            ]
    return []


def _made_at(log: Log, scored_at: str) -> str:
    """Return the line that makes the average which is scored at a line; that one where the source does not show it."""
    place = place_of(scored_at, log.sources)
    shown = {file: name for name, file in log.sources.items()}
    for step in Trails(log.sources.values()).back(*place, wide=True) if place else ():
        made = step.statement
        if not isinstance(made, ast.Assign) or not isinstance(made.targets[0], ast.Name):
            continue  # what a class makes of its own parts is made where the class is
        if isinstance(made.value, ast.Call) and _MAKES_AVERAGE.search(ast.unparse(made)):
            return f"{shown[step.file]}:{step.line}"
    return scored_at


def average_left_in(log: Log) -> list[Finding]:
    """Detect that a model goes on to learn from the average that was put into it for an evaluation.

    An average lies back on the way of the weights; what was pruned, clamped or rounded does not. A state that was scored or
    saved before is the best one, which is restored on purpose.
    """
    swaps = [event for event in log.of(AverageKept) if event.backwards >= BACK]
    if len(swaps) < 2 or log.exchanges:
        return []
    known: set[str] = set()
    scored: dict[int, Forward] = {}
    new: list[Forward] = []
    for event in log.events:
        if isinstance(event, Forward) and not event.grad:
            if event.raw:
                known.add(event.weights)
            elif event.weights not in known:
                scored[event.module] = event
        elif isinstance(event, Save):
            known.update(set(event.weights) - {each.weights for each in scored.values()})
        elif isinstance(event, AverageKept) and event in swaps and event.module in scored:
            new.append(scored.pop(event.module))
    if len(new) < 2:
        return []
    return [
        Finding(
            "average_kept",
            Certainty.LIKELY,
            "Weights that are put into the model for an evaluation stay in it, and it goes on to learn from them.",
            new[0].put_at or new[0].at,
            (
                f"{len(new)} times; they lie back on the way that the weights came (cosine {swaps[0].backwards:.2f}), as an average does",
                f"learned from at {swaps[0].at}",
            ),
            "kept = copy.deepcopy(model.state_dict())\nmodel.load_state_dict(average)\nevaluate(model)\nmodel.load_state_dict(kept)",
        )
    ]


def average_and_best(log: Log) -> list[Finding]:
    """Detect that the best checkpoint is restored after averaging has begun, or training ended before it could begin."""
    averages = list(log.of(Average))
    models = [model for model in log.models if model.averaged_of]
    fix = "Choose one: the best checkpoint without averaging, or the average of a run to its end (torch.optim.swa_utils.update_bn)."
    if averages:
        begun = log.events.index(averages[0])
        saved = {weights for save in log.of(Save) for weights in save.weights}
        averaging = {event.module for event in averages}
        for event in log.events[begun:]:
            if isinstance(event, Restore) and event.module not in averaging and event.weights in saved:
                return [
                    Finding(
                        "average_and_best",
                        Certainty.LIKELY,
                        "A saved state is restored after averaging has begun: the average and the best checkpoint exclude each other.",
                        event.at,
                        (f"{len(averages)} averaging steps, the first at {averages[0].at}",),
                        fix,
                    )
                ]
    elif models and log.whole:
        scored = next((e for e in log.of(Forward) if e.module == models[0].id and not e.grad), None)
        return [
            Finding(
                "average_and_best",
                Certainty.LIKELY,
                "Training ended before the averaging of weights began: the average is the initial model.",
                scored.at if scored else models[0].at,
                ("AveragedModel.update_parameters was never called",),
                fix,
            )
        ]
    return []


def nothing_restored(log: Log) -> list[Finding]:
    """Detect a checkpoint of which no entry fits the model: load_state_dict(strict=False) is silent about it."""
    for event in log.of(Restore):
        if event.missing and event.missing == event.entries and (event.foreign or event.empty):
            seen = (
                "the state that is put in is empty, though a file was read for it: nothing was saved, or none of its names was picked"
                if event.empty
                else f"a name of the checkpoint that the model does not know: {event.foreign}"
            )
            return [
                Finding(
                    "nothing_restored",
                    Certainty.CERTAIN,
                    f"None of the model's {event.entries} entries is in the checkpoint: it goes on with the weights it was drawn with.",
                    event.at,
                    (seen,),
                    'state = {name.removeprefix("module."): value for name, value in state.items()}\n'
                    "model.load_state_dict(state)   # strict, so that it fails",
                )
            ]
    return []


def overwritten(log: Log) -> list[Finding]:
    """Detect loaded weights of which next to nothing is left when training begins."""
    for event in log.of(Overwritten):
        if event.lost >= MOSTLY * event.matrices:
            return [
                Finding(
                    "nothing_restored",
                    Certainty.CERTAIN,
                    f"{event.lost} of {event.matrices} matrices that are loaded here are others at the first update: something draws them anew.",
                    event.at,
                    (
                        "the weights that the first update finds have nothing in common with those that were loaded",
                    ),
                    "model.init_weights()\nmodel.load_state_dict(state)   # after everything that draws weights",
                )
            ]
    return []


def best_not_copied(log: Log) -> list[Finding]:
    """Detect a state that is loaded into the module whose own tensors it holds: it has changed with them, and nothing is restored."""
    for event in log.of(Restore):
        if event.own:
            trained = event.own == "trained"
            return [
                Finding(
                    "best_not_copied",
                    Certainty.CERTAIN if trained else Certainty.LIKELY,
                    "The state that is loaded holds the model's own tensors: "
                    + (
                        "it was trained on with them, and what it was taken for is gone."
                        if trained
                        else "the model is loaded from itself, and nothing changes."
                    ),
                    event.at,
                    ("state_dict() returns references, not copies",),
                    "best = copy.deepcopy(model.state_dict())"
                    if trained
                    else "target = copy.deepcopy(model)   # a network of its own\ntarget.load_state_dict(model.state_dict())",
                )
            ]
    return _named_not_copied(log)


def _named_not_copied(log: Log) -> list[Finding]:
    """Return the best state or model that was kept by its name: it is trained on, and what is kept is the last."""
    for save in log.of(StaleSave):
        return [
            Finding(
                "best_not_copied",
                Certainty.CERTAIN,
                "The state that is taken here holds the model's own tensors, and is saved after they were trained on: it is the last, not this one.",
                save.at,
                (f"saved at {save.saved_at}", "state_dict() returns references, not copies"),
                "best = copy.deepcopy(model.state_dict())",
            )
        ]
    for alias in log.of(BestAliased):
        return [
            Finding(
                "best_not_copied",
                Certainty.LIKELY,
                f"`{alias.name}` is another name of `{alias.model}`, not a copy: as that trains on, the best is what came last.",
                alias.at,
                ("the loop trains the same model on",),
                f"{alias.name} = copy.deepcopy({alias.model})",
            )
        ]
    return []


def partial_resume(log: Log) -> list[Finding]:
    """Detect that training goes on from a checkpoint of its own of which the optimizer's or the schedule's state is left out.

    A checkpoint of another folder than the script writes to is one to begin from: its moments belong to another task.
    """
    own = {save.folder for save in log.of(Save) if save.folder}
    events = log.events
    reads = [place for place, event in enumerate(events) if isinstance(event, Resume)]
    for place, until in itertools.pairwise([*reads, len(events)]):
        read = events[place]
        if not isinstance(read, Resume) or read.folder not in own:
            continue
        finding = _left_out(log, read, events[place + 1 : until])
        if finding is not None:
            return [finding]
    return []


def _left_out(log: Log, read: Resume, after: list[Event]) -> Finding | None:
    """Return what of a checkpoint is not used by the training that follows, of the module whose weights are from it."""
    restored = [event for event in after if isinstance(event, Restore) and not event.missing]
    states = [event for event in after if isinstance(event, StateRestore)]
    if not restored:
        return None
    later = after[after.index(restored[-1]) :]
    own = {each.id for each in log.optimizers if set(restored[-1].parameters) & set(each.parameters)}
    if sum(isinstance(event, Step) and event.optimizer in own for event in later) < LEAST_STEPS:
        return None
    stepped = {event.optimizer for event in later if isinstance(event, Step)} & own
    put = {each.optimizer for each in states if not each.schedule}
    made = [each for each in log.optimizers if each.id in stepped]
    replaced = len(put) == 1 and put.isdisjoint(stepped) and put <= {each.id for each in log.optimizers}
    if read.optimizer and replaced:
        return _replaced(read, states, made[0])
    if read.optimizer and not put:
        what, state, at = "optimizer", "its moments are", restored[-1].at
    elif read.schedule and not any(each.schedule for each in states) and _begins_behind_a_step(later):
        what, state, at = "scheduler", "the schedule's place is", (states or restored)[-1].at
    else:
        return None
    return Finding(
        "partial_resume",
        Certainty.LIKELY,
        f"Training goes on from a checkpoint, and {state} left out: the {what} begins anew.",
        at,
        (f"the checkpoint that is read at {read.at} holds the {what}'s state",),
        f'{what}.load_state_dict(checkpoint["{what}"])',
    )


def _begins_behind_a_step(later: list[Event]) -> bool:
    """Return whether a schedule moves, and not before the optimizer does, as one does that is brought to its place step by step."""
    moves = [event for event in later if isinstance(event, Step | ScheduleStep)]
    return any(isinstance(event, ScheduleStep) for event in moves) and isinstance(moves[0], Step)


def schedule_anew(log: Log) -> list[Finding]:
    """Detect an optimizer that goes on from a saved state under a schedule, which begins at its beginning: its own state was not saved, or not restored."""
    optimizers = {each.id: each.optimizer for each in log.schedulers}
    put: dict[int, StateRestore] = {}
    stepped: set[int] = set()
    for event in log.events:
        if isinstance(event, StateRestore) and event.schedule:
            put.clear()
        elif isinstance(event, StateRestore) and event.scheduled:
            put[event.optimizer] = event
            stepped.discard(event.optimizer)
        elif isinstance(event, Step):
            stepped.add(event.optimizer)
        elif isinstance(event, ScheduleStep):
            optimizer = optimizers.get(event.scheduler, 0)
            restored = put.pop(optimizer, None)
            if restored is not None and optimizer in stepped and event.first:
                return [
                    Finding(
                        "partial_resume",
                        Certainty.LIKELY,
                        "Training goes on from an optimizer's saved state, and the schedule that moves its rate begins anew.",
                        restored.at,
                        (
                            f"the state was saved under a schedule; this one is stepped for the first time at {event.at}",
                        ),
                        'scheduler.load_state_dict(checkpoint["scheduler"])   # which is saved with the others',
                    )
                ]
    return []


def _replaced(read: Resume, states: list[StateRestore], made: OptimizerSeen) -> Finding:
    """Return that the optimizer which got the state of a checkpoint never steps: another one was made after it, or in its place."""
    put = next(each for each in states if not each.schedule)
    return Finding(
        "partial_resume",
        Certainty.LIKELY,
        "Training goes on from a checkpoint, and the optimizer that its state is put into never steps: the one that does begins anew.",
        made.at,
        (f"the state that is read at {read.at} is put into another optimizer at {put.at}",),
        'optimizer = build(model)\noptimizer.load_state_dict(checkpoint["optimizer"])   # the one that steps',
    )


DETECTORS = (
    nothing_restored,
    overwritten,
    best_not_copied,
    partial_resume,
    schedule_anew,
    pickle,
    averaged_not_saved,
    average_stands_still,
    average_far_behind,
    average_never_moves,
    average_by_name,
    average_follows,
    average_left_in,
    average_and_best,
)
