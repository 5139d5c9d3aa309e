"""Learning rate schedules: their order and their length."""

from __future__ import annotations

from snugfit.doctor.findings import Finding, Severity
from snugfit.doctor.observe.detectors_data import training_loaders
from snugfit.doctor.observe.detectors_gradients import windows
from snugfit.doctor.observe.log import Log, SchedulerSeen
from snugfit.doctor.observe.script_events import Batch, EpochEnd, ScalerStep, ScheduleStep, Step

LEAST_UPDATES = 2
_ORDER_FIX = "optimizer.step()\nscheduler.step()"


def scheduler_order(log: Log) -> list[Finding]:
    """Detect that a schedule moves before its optimizer's first step, moves alone, or never moves."""
    return [finding for scheduler in log.schedulers if (finding := _order_of(log, scheduler)) is not None]


def _order_of(log: Log, scheduler: SchedulerSeen) -> Finding | None:
    own = [
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
            Severity.ERROR,
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
            Severity.WARNING,
            f"{scheduler.name} is made and never stepped in {len(updates)} updates: the learning rate stays.",
            scheduler.at,
            (),
            _ORDER_FIX,
        )
    early = own[: next(place for place, event in enumerate(own) if isinstance(event, Step | ScalerStep))]
    again = {event.at for event in moves[len(early) :]}
    if not early or (len(moves) > len(early) and early[0].at not in again):
        return None
    return Finding(
        "scheduler_order",
        Severity.ERROR,
        f"{scheduler.name} is stepped before the optimizer's first step: the first learning rate is skipped.",
        early[0].at,
        (f"the optimizer steps at {updates[0].at}",),
        _ORDER_FIX,
    )


def _belongs_to_another(log: Log, scheduler: SchedulerSeen) -> bool:
    """Parts of SequentialLR and ChainedScheduler are stepped by these, and the averaging rate by its own plan."""
    others = [
        each for each in log.schedulers if each.id != scheduler.id and each.optimizer == scheduler.optimizer
    ]
    return bool(others) or scheduler.name == "SWALR"


def schedule_length(log: Log) -> list[Finding]:
    """Detect a schedule made for more steps than it gets, or for fewer.

    A run that stops early, and a cosine that is meant to rise again, look alike: only a length that fits the micro-batches,
    the epochs or the ranks instead of the steps is a warning.
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
                Severity.WARNING if ill else Severity.NOTE,
                what,
                scheduler.at,
                (f"stepped at {moves[0].at}; {log.updates} optimizer steps", *mistaken),
                "updates = epochs * math.ceil(len(loader) / accumulate)   # how often scheduler.step() will be called",
            )
        )
    return findings


def _mistaken_for(log: Log, total: int, moves: int) -> tuple[str, ...]:
    """Return what the length counts, where it is not the schedule's steps."""
    training = {loader.id for loader in training_loaders(log)}
    epochs = max((sum(e.loader == number for e in log.of(EpochEnd)) for number in training), default=0)
    batches = sum(event.loader in training for event in log.of(Batch))
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
    elif epochs > 1 and _close(total, epochs) and moves >= 2 * epochs:
        meanings.append(f"{total} is the number of epochs; it is stepped {moves // epochs} times in each")
    return tuple(meanings)


def _close(one: int, other: int) -> bool:
    return abs(one - other) <= 0.05 * max(one, other)


def _usual_window(log: Log) -> int:
    lengths = [
        len(window.passes) for window in windows(log) if window.accumulates() and window.step is not None
    ]
    return max(set(lengths), key=lengths.count) if lengths else 1


DETECTORS = (scheduler_order, schedule_length)
