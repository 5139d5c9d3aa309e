"""Learning rate schedules: their order and their length."""

from __future__ import annotations

import itertools
import math
from collections import Counter

from snugfit.doctor.findings import Certainty, Finding
from snugfit.doctor.observe.detectors.updates.rate_curves import end_of
from snugfit.doctor.observe.events.log import Log, SchedulerSeen
from snugfit.doctor.observe.events.log_views import training_loaders, windows
from snugfit.doctor.observe.events.run_events import WrongWay
from snugfit.doctor.observe.events.script_events import (
    Backward,
    EpochEnd,
    Event,
    Forward,
    Hits,
    ScalerStep,
    ScheduleStep,
    SklearnScore,
    Step,
)

LEAST_UPDATES = 2
FEWER = 3
"""A schedule that is stepped so many times less often than the optimizer is stepped in each epoch."""
LEAST_AFTER = 3
LEAST_TIMES = 3
LEAST_RISE, HALF_WAY = 8, 0.5
"""Updates whose rates rise one after the other, and the part of the rate that a warm-up is to reach by then."""
LEAST_FALL, NOTHING = 20, 1e-3
EITHER = "a half of hits, which is one of misses too"
_MORE_IS_BETTER = (
    "accuracy_score",
    "average_precision_score",
    "balanced_accuracy_score",
    "f1_score",
    "precision_score",
    "r2_score",
    "recall_score",
    "roc_auc_score",
)
_ORDER_FIX = "optimizer.step()\nscheduler.step()"


def scheduler_order(log: Log) -> list[Finding]:
    """Detect that a schedule moves before its optimizer's first step, moves alone, or never moves."""
    return [finding for scheduler in log.schedulers if (finding := _order_of(log, scheduler)) is not None]


def _order_of(log: Log, scheduler: SchedulerSeen) -> Finding | None:
    own: list[Event] = [
        event
        for event in log.events
        if (isinstance(event, ScheduleStep) and event.scheduler == scheduler.id)
        or (isinstance(event, Step | ScalerStep) and event.optimizer == scheduler.optimizer)
    ]
    moves = [event for event in own if isinstance(event, ScheduleStep)]
    updates = [event for event in own if isinstance(event, Step)]
    if moves and not updates:
        if log.updates < LEAST_UPDATES:
            return None
        return Finding(
            "scheduler_order",
            Certainty.CERTAIN,
            f"{scheduler.name} is stepped {len(moves)} times, and its optimizer never steps: another one does.",
            moves[0].at,
            (f"the schedule was made at {scheduler.at}",),
            "scheduler = Scheduler(the_optimizer_that_steps, ...)",
        )
    if not moves:
        if not log.whole or len(updates) < LEAST_UPDATES or _belongs_to_another(log, scheduler):
            return None
        return Finding(
            "scheduler_order",
            Certainty.LIKELY,
            f"{scheduler.name} is made and never stepped in {len(updates)} updates: the learning rate stays.",
            scheduler.at,
            (),
            _ORDER_FIX,
        )
    left = _left_behind(log, scheduler, own)
    if left is not None:
        return left
    early = own[: next(place for place, event in enumerate(own) if isinstance(event, Step | ScalerStep))]
    again = {event.at for event in moves[len(early) :]}
    if not early or (len(moves) > len(early) and early[0].at not in again):
        return None
    return Finding(
        "scheduler_order",
        Certainty.CERTAIN,
        f"{scheduler.name} is stepped before the optimizer's first step: the first learning rate is skipped.",
        early[0].at,
        (f"the optimizer steps at {updates[0].at}",),
        _ORDER_FIX,
    )


def _left_behind(log: Log, scheduler: SchedulerSeen, own: list[Event]) -> Finding | None:
    """Return what a schedule is that goes on to move an optimizer which steps no more, since another one has its parameters."""
    last = max(place for place, event in enumerate(own) if isinstance(event, Step))
    after = [event for event in own[last + 1 :] if isinstance(event, ScheduleStep)]
    mine = next((each for each in log.optimizers if each.id == scheduler.optimizer), None)
    if len(after) < LEAST_AFTER or mine is None:
        return None
    since = own[last].update
    for other in log.optimizers:
        taken_over = other.id != mine.id and set(mine.parameters) & set(other.parameters)
        steps = [e for e in log.of(Step) if e.optimizer == other.id and e.update >= since]
        scheduled = any(each.optimizer == other.id for each in log.schedulers)
        if taken_over and len(steps) >= LEAST_AFTER and not scheduled:
            return Finding(
                "scheduler_order",
                Certainty.CERTAIN,
                f"{scheduler.name} is stepped {len(after)} times for an optimizer that steps no more: another one, made at {other.at}, "
                "has its parameters, and no schedule.",
                after[0].at,
                (f"the schedule was made at {scheduler.at}",),
                "optimizer = Optimizer(...)\nscheduler = Scheduler(optimizer, ...)   # anew with it",
            )
    return None


def _belongs_to_another(log: Log, scheduler: SchedulerSeen) -> bool:
    """Parts of SequentialLR and ChainedScheduler are stepped by these, and the averaging rate by its own plan."""
    others = [
        each for each in log.schedulers if each.id != scheduler.id and each.optimizer == scheduler.optimizer
    ]
    moved = {event.scheduler for event in log.of(ScheduleStep)}
    later = others and log.schedulers.index(scheduler) < max(map(log.schedulers.index, others))
    return bool(later) or any(each.id in moved for each in others) or scheduler.name == "SWALR"


def schedule_length(log: Log) -> list[Finding]:
    """Detect a schedule made for more steps than it gets, or for fewer.

    A run that stops early, and a cosine that is meant to rise again, look alike: only a length that fits the micro-batches,
    the epochs, the rows or the ranks instead of the steps is likely a fault.
    """
    if any(each.name == "SWALR" for each in log.schedulers):
        return []
    findings = []
    for scheduler in log.schedulers:
        moves = [event for event in log.of(ScheduleStep) if event.scheduler == scheduler.id]
        if not scheduler.total or not moves:
            continue
        mistaken = _mistaken_for(log, scheduler.total, len(moves))
        if len(moves) > 1.05 * scheduler.total + 1:
            rises = scheduler.name == "CosineAnnealingLR"
            after = "starts to rise again" if rises else "has reached its end"
            what = f"{scheduler.name} was made for {scheduler.total} steps and is stepped {len(moves)} times: it {after}."
            ill = bool(mistaken) or not rises
        elif log.whole and scheduler.total >= 1.5 * len(moves) and scheduler.total - len(moves) >= 2:
            what = f"{scheduler.name} was made for {scheduler.total} steps and gets {len(moves)}: it never reaches its end."
            ill = bool(mistaken)
        else:
            continue
        findings.append(
            Finding(
                "schedule_length",
                Certainty.LIKELY if ill else Certainty.WORTH_A_LOOK,
                what,
                scheduler.at,
                (f"stepped at {moves[0].at}; {log.updates} optimizer steps", *mistaken),
                "updates = epochs * math.ceil(len(loader) / accumulate)   # how often scheduler.step() will be called",
            )
        )
    return findings


def warms_up_to_the_end(log: Log) -> list[Finding]:
    """Detect a rate that rises in every update of a whole run, and ends far below the one that it was to rise to.

    Where a schedule's factors go above 1, as in a range test, the rate that they multiply is none to rise to.
    """
    if not log.whole:
        return []
    for scheduler in log.schedulers:
        steps = [each for each in log.of(Step) if each.optimizer == scheduler.optimizer and each.base > 0]
        rates = [each.rate for each in steps]
        rises = all(one <= other for one, other in itertools.pairwise(rates))
        if len(rates) < LEAST_RISE or not rises or len(set(rates)) < LEAST_RISE:
            continue
        share = rates[-1] / steps[-1].base
        if share <= HALF_WAY:
            return [
                Finding(
                    "schedule_length",
                    Certainty.LIKELY,
                    f"The rate rises in all {log.updates} updates and ends at {share:.0%} of {steps[-1].base:.3g}: the warm-up is longer than the run.",
                    scheduler.at,
                    (f"{scheduler.name}: {rates[0]:.3g} in the first update, {rates[-1]:.3g} in the last",),
                    "warmup_steps = updates // 20   # of the whole run",
                )
            ]
    return []


def falls_too_soon(log: Log) -> list[Finding]:
    """Detect a rate that a schedule without an end brings to nothing before half of a whole run, and that stays there: it is stepped too often."""
    if not log.whole:
        return []
    for scheduler in log.schedulers:
        steps = [each for each in log.of(Step) if each.optimizer == scheduler.optimizer]
        rates = [each.rate for each in steps]  # some of them, late in a long run
        moves = [event for event in log.of(ScheduleStep) if event.scheduler == scheduler.id]
        if scheduler.total or len(rates) < LEAST_FALL or not moves or max(rates) <= 0:
            continue
        above = max(each.update for each in steps if each.rate > NOTHING * max(rates))
        early = above < steps[0].update + HALF_WAY * (steps[-1].update - steps[0].update)
        if early and len(set(rates)) > LEAST_UPDATES:
            return [
                Finding(
                    "schedule_length",
                    Certainty.LIKELY,
                    f"The rate is less than a thousandth of {max(rates):.3g} from update {above + 2} of {log.updates} on: nothing is learned in the rest.",
                    scheduler.at,
                    (
                        f"{scheduler.name} is stepped {len(moves)} times, at {moves[0].at}; {rates[-1]:.3g} in the last update",
                    ),
                    "scheduler.step()   # once in each epoch, where its steps are epochs",
                )
            ]
    return []


def hardly_falls(log: Log) -> list[Finding]:
    """Detect a rate that falls along a curve whose end lies as far beyond that of a whole run as there are rows in a batch, or micro-batches in an update.

    The curve is read from the rates that were used, so that it does not matter who sets them.
    """
    if not log.whole:
        return []
    for optimizer in log.optimizers:
        schedulers = [each for each in log.schedulers if each.optimizer == optimizer.id]
        steps = [each for each in log.of(Step) if each.optimizer == optimizer.id]
        end = end_of([(each.update, each.rate) for each in steps])
        if end is None or any(each.total for each in schedulers):
            continue
        total, curve = end
        moves = [sum(event.scheduler == each.id for event in log.of(ScheduleStep)) for each in schedulers]
        made = max(steps[-1].update + 1, *moves, log.updates if len(log.optimizers) == 1 else 0)
        mistaken = _mistaken_for(log, total, made) if total >= 1.5 * made else ()
        if mistaken:
            return [
                Finding(
                    "schedule_length",
                    Certainty.LIKELY,
                    f"The rate falls to {steps[-1].rate / max(each.rate for each in steps):.0%} in {made} updates: as it falls, it comes to 0 after {total}.",
                    schedulers[-1].at if schedulers else optimizer.at,
                    (f"the curve of its fall: {curve}", *mistaken),
                    "updates = epochs * len(loader)   # how often the rate is set anew",
                )
            ]
    return []


def _mistaken_for(log: Log, total: int, moves: int) -> tuple[str, ...]:
    """Return what the length counts, where it is not the schedule's steps."""
    training = {
        loader.id: loader.at for loader in training_loaders(log)
    }  # some scripts make one for each epoch
    ends = Counter(training[event.loader] for event in log.of(EpochEnd) if event.loader in training)
    epochs = max(ends.values(), default=0)
    sizes = [event.rows for event in log.of(Forward) if event.grad]
    rows = max(set(sizes), key=sizes.count, default=0)
    batches = sum(loader.batches for loader in training_loaders(log))
    world_size = max((loader.world_size for loader in log.loaders), default=1)
    window = _usual_window(log)
    meanings = []
    if total > moves:
        if window > 1 and _close(total, moves * window):
            meanings.append(f"{total} is the number of micro-batches; each update accumulates {window}")
        elif epochs and _close(moves, epochs) and _close(total, batches):
            meanings.append(
                f"{total} is the number of batches; it is stepped once in each of {epochs} epochs"
            )
        elif world_size > 1 and _close(total, moves * world_size):
            meanings.append(
                f"{total} is the number of steps of one rank that sees all rows; there are {world_size} ranks"
            )
        elif moves > 1 and _close(total, log.updates) and total >= FEWER * moves:
            meanings.append(f"{total} is the number of updates; it is stepped {moves} times in them")
        elif rows > 1 and _close(total, moves * rows):
            meanings.append(f"{total} is the number of rows; each step takes {rows} of them")
    elif epochs > 1 and moves >= 2 * epochs and (_close(total, epochs) or moves * epochs == total * batches):
        meanings.append(f"{total} is the number of epochs; it is stepped {moves // total} times in each")
    elif window > 1 and _close(moves, total * window):
        meanings.append(f"{total} is the number of updates; it is stepped in each of {moves} micro-batches")
    elif epochs > 1 and _close(total * epochs, moves) and _close(batches, moves):
        meanings.append(f"{total} is the number of batches of one epoch; there are {epochs}")
    return tuple(meanings)


def _close(one: int, other: int) -> bool:
    return abs(one - other) <= 0.05 * max(one, other)


def _usual_window(log: Log) -> int:
    lengths = [
        len(window.passes) for window in windows(log) if window.accumulates() and window.step is not None
    ]
    return max(set(lengths), key=lengths.count) if lengths else 1


def better_wrong_way(log: Log) -> list[Finding]:
    """Detect a library's trainer that takes a score for better the wrong way round."""
    for event in log.of(WrongWay):
        way = "more" if event.greater else "less"
        return [
            Finding(
                "plateau_metric",
                Certainty.CERTAIN,
                f"The trainer takes {way} of {event.name} for better, to keep the best or to stop: it keeps the worst.",
                event.at,
                (),
                f"greater_is_better={not event.greater}   # of transformers; mode='{'min' if event.greater else 'max'}' of Lightning",
            )
        ]
    return []


def plateau_metric(log: Log) -> list[Finding]:
    """Detect a schedule that waits for a score to move the wrong way: hits for a fall, a loss for a rise."""
    for scheduler in log.schedulers:
        equal = rows = 0
        losses: list[float] = []
        scores: list[SklearnScore] = []
        moves = [event for event in log.of(ScheduleStep) if event.scheduler == scheduler.id and event.mode]
        matched: list[str] = []
        for event in log.events if moves else []:
            if isinstance(event, Hits):
                equal, rows = equal + event.equal, rows + event.rows
            elif isinstance(event, Backward):
                losses.append(event.value)
            elif isinstance(event, SklearnScore):
                scores.append(event)
            elif isinstance(event, ScheduleStep) and event.scheduler == scheduler.id:
                matched.append(_wrong_way(event, equal, rows, losses, scores))
                equal = rows = 0
                losses, scores = [], []
        clear = [each for each in matched if each != EITHER]
        if len(clear) >= LEAST_UPDATES and all(clear):
            mode = moves[0].mode
            return [
                Finding(
                    "plateau_metric",
                    Certainty.CERTAIN,
                    f"{scheduler.name} takes {'less' if mode == 'min' else 'more'} for better, and is given {clear[0]}.",
                    scheduler.at if moves[0].at in log.library_runs else moves[0].at,
                    (
                        f"the scores: {', '.join(f'{each.metric:.4g}' for each in moves[:6])}",
                        f"made at {scheduler.at}",
                    ),
                    f'ReduceLROnPlateau(optimizer, mode="{"max" if mode == "min" else "min"}")',
                )
            ]
    return []


def _wrong_way(
    step: ScheduleStep, equal: int, rows: int, losses: list[float], scores: list[SklearnScore]
) -> str:
    """Return what a schedule is given, if that moves against its mode; "" if nothing says so."""
    given = step.metric
    if step.mode == "min":
        if rows and any(math.isclose(given, factor * equal / rows, rel_tol=1e-5) for factor in (1, 100)):
            return f"a share of hits, such as {given:.4g}" if equal != rows - equal else EITHER
        named = next(
            (each.function for each in scores if each.function in _MORE_IS_BETTER and each.value == given), ""
        )
        return f"what {named} gives" if named else ""
    mean = sum(losses) / len(losses) if losses else math.nan
    of_losses = step.of_losses or any(
        math.isclose(given, each, rel_tol=1e-5) for each in (mean, *losses[-1:], sum(losses)) if each
    )
    return f"a loss, such as {given:.4g}" if of_losses else ""


def schedule_made_anew(log: Log) -> list[Finding]:
    """Detect schedules that are made again and again at one line, each stepped when its optimizer has taken its last step."""
    stepped = {each.id: each.steps for each in log.optimizers if each.steps}
    moved: dict[int, int] = {}
    for event in log.of(ScheduleStep):
        moved.setdefault(event.scheduler, event.updates)
    by_line: dict[str, list[SchedulerSeen]] = {}
    for each in log.schedulers:
        if each.id in moved and each.optimizer in stepped:
            by_line.setdefault(each.at, []).append(each)
    for at, made in by_line.items():
        moves = any(moved[each.id] < stepped[each.optimizer] for each in made)
        if moves or len({each.optimizer for each in made}) < LEAST_TIMES:
            continue
        return [
            Finding(
                "schedule_length",
                Certainty.LIKELY,
                f"{made[0].name} is made {len(made)} times, and stepped when its optimizer has taken its last step: no update has a rate that it sets.",
                at,
                ("each schedule begins at the first rate again",),
                "rate = first_rate * decay**epoch   # of all that was trained; or keep one schedule, or its state_dict()",
            )
        ]
    return []


DETECTORS = (
    scheduler_order,
    schedule_made_anew,
    schedule_length,
    warms_up_to_the_end,
    falls_too_soon,
    hardly_falls,
    plateau_metric,
    better_wrong_way,
)
