"""A plan for a subject, a machine and a budget: the number before the run, and the choice."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from snugfit.core.job import Plan
from snugfit.core.technique import Fidelity, Technique
from snugfit.errors import OutOfMemory
from snugfit.planner.answers.answer import Answer, FrontierBound, FrontierPoint
from snugfit.planner.answers.plan_figures import brief_bytes, brief_seconds
from snugfit.planner.choice import channel
from snugfit.planner.choice.candidate import Budget, Candidate
from snugfit.planner.choice.frontier import PARTLY, bounds, explore, frontier
from snugfit.planner.choice.goals import SLOWER, WORTH, Goal
from snugfit.planner.choice.reasons import alternatives, describe, rejected, why, why_not
from snugfit.planner.choice.search import Search
from snugfit.planner.devices.device import Machine
from snugfit.planner.prediction.measure import measure
from snugfit.planner.prediction.plan_needs import Planner
from snugfit.planner.trace.dry_run import Subject, own_garbage
from snugfit.system.second_process import second_process

BRIEF = "No other plan was looked at: the whole run takes {}, and a search pays for itself in a longer one (snugfit plan --seconds 60 makes one)."


@dataclass(frozen=True)
class Request:
    """The wishes of whoever asks the planner, beside the subject.

    Args:
        search: False predicts the plan as it stands.
        probe: measure on the device itself instead, for models that cannot be run on fake tensors.
        export: the tool that the plan is to be written for; `rungs` says of a technique whether it may be weighed for it.
        keeps_precision: nothing may change what forward and backward compute in, as it is named.
        goal: one of `goals.GOALS`; worth, slower, price: as `Target` has them.
        seconds: after which no further plan is predicted; None for as long as the search takes.
        fewer: whether one of several devices may be the choice.
        frontier: whether the fastest and the smallest plan of every level are searched for.
        brief: seconds of a whole run that is not searched for where the recipe's own plan fits: a search takes longer than it saves.
    """

    plan: Plan
    budget: Budget
    search: bool = True
    probe: bool = False
    export: str | None = None
    rungs: Callable[[Technique], bool] = lambda _: True
    keeps_precision: bool = False
    goal: str = "fastest"
    worth: float = WORTH
    slower: float = SLOWER
    price: float | None = None
    seconds: float | None = None
    fewer: bool = True
    frontier: bool = False
    brief: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """The outcome of a search: the choice, where nothing fits the least bytes that each level needs, and what each level offers."""

    search: Search
    choice: Candidate | None
    needed: Mapping[str, int] = field(default_factory=dict)
    frontier: tuple[FrontierPoint, ...] = ()
    bounds: tuple[FrontierBound, ...] = ()
    notes: tuple[str, ...] = ()


def make_plan(
    subject: Subject, machine: Machine, request: Request, about: Mapping[str, Any] | None = None
) -> Answer:
    """Return the plan of one device.

    Raises:
        UserError: the model, the techniques or the settings cannot be run as the recipe has them.
    """
    started = time.monotonic()
    planner = Planner(subject, machine)
    with second_process(planner.run) as planner.second:
        outcome = explained(look_for(planner, request), request)
        if request.frontier:
            outcome = explored(outcome)
    answer = answer_of(outcome, machine, about or {})
    return replace(answer, planned_seconds=time.monotonic() - started)


def look_for(planner: Planner, request: Request, rivals: Sequence[Candidate] = ()) -> Outcome:
    """Search for what is asked.

    Args:
        rivals: plans that were found elsewhere; what is slower than they are is not looked at.
    Raises:
        UserError: the model, the techniques or the settings cannot be run as the recipe has them.
    """
    with _settled():
        until = math.inf if request.seconds is None else time.monotonic() + request.seconds
        asked = _asked(planner, request)
        goal = Goal(request.goal, request.worth, request.slower)
        search = Search(
            planner,
            request.plan,
            request.budget,
            until,
            asked,
            goal,
            rivals,
            progress=_tell,
            may_add=lambda rung: (
                request.rungs(rung) and not (request.keeps_precision and rung.card.precision)
            ),
            even=request.export is not None,
        )
        channel.heed(search)
        brief = _brief(asked, request)
        if request.search and not brief:
            search.best()
            if not channel.interrupted():
                search.find_any()
        candidate = search.confirm(search.choice) if request.search else search.choice()
    notes = brief if not search.looked else ()  # a plan that does not fit after all is searched for
    outcome = Outcome(search, candidate, frontier=frontier(search), notes=notes)
    return replace(outcome, bounds=bounds(search)) if request.search else outcome


def _brief(asked: Candidate, request: Request) -> tuple[str, ...]:
    """Return why nothing else is looked at, where the recipe's own plan fits and the run is over sooner than a search pays for itself."""
    seconds = asked.prediction.seconds_total if request.search else None
    if seconds is None or seconds > request.brief or not asked.fits:
        return ()
    return (BRIEF.format(brief_seconds(seconds)),)


def explained(outcome: Outcome, request: Request) -> Outcome:
    """Return an outcome that says, where a search found nothing that fits, the least that each level needs."""
    search = outcome.search
    if outcome.choice is not None or not request.search:
        return outcome
    with _settled():
        needed = search.needed()
    return replace(outcome, needed=needed, frontier=frontier(search), bounds=bounds(search))


def explored(outcome: Outcome) -> Outcome:
    """Return an outcome with the fastest and the smallest plan of each level, each searched for."""
    with _settled():
        points, needs, complete = explore(outcome.search)
    needed = needs if outcome.choice is None else {}
    return replace(outcome, needed=needed, frontier=points, bounds=(), notes=() if complete else (PARTLY,))


def _tell(looked: int, of: int, best: Candidate | None, only: Fidelity | None) -> None:
    """Tell who waits for the answer how far a search is."""
    level = None if only is None else only.label
    if best is None:
        channel.tell(looked, of, level=level)
    else:
        prediction = best.prediction
        channel.tell(looked, of, prediction.seconds_per_update, prediction.reserved_bytes, level)


def answer_of(outcome: Outcome, machine: Machine, about: Mapping[str, Any]) -> Answer:
    """Return what a search came to, as an answer."""
    search, candidate = outcome.search, outcome.choice
    best = candidate or search.least()
    early = (channel.EARLY,) if channel.interrupted() else ()
    unchecked = (channel.UNCHECKED,) if search.unchecked else ()
    reasons = why_not(search, outcome.needed) if candidate is None else why(candidate, search)
    return Answer(
        fits=candidate is not None,
        device=device_of(machine),
        budget_bytes=search.budget.memory_bytes,
        prediction=best.prediction,
        choice=describe(best),
        alternatives=alternatives(search, candidate),
        rejected=rejected(search),
        why=(
            *reasons,
            *early,
            *unchecked,
            *outcome.notes,
            *upper_bound(search.planner.subject),
            *machine.notes,
        ),
        would_fit=outcome.needed,
        frontier=outcome.frontier,
        bounds=outcome.bounds,
        about=about,
    )


def make_measured_plan(
    subject: Subject, machine: Machine, request: Request, about: Mapping[str, Any]
) -> Answer:
    """Return what the plan as it stands needs, measured with few examples on the device itself.

    Raises:
        SettingError: the device is not here.
        OutOfMemory: two examples are too many.
    """
    started = time.monotonic()
    prediction = measure(subject, request.plan, subject.techniques, machine)
    size, budget = request.plan.micro_batch, request.budget
    rows = min(size, subject.window.rows) if isinstance(size, int) else subject.window.rows
    candidate = Candidate(subject.techniques, rows, (), prediction, budget.holds(prediction))
    summary = f"Measured on this machine: {brief_bytes(prediction.reserved_bytes)} of {brief_bytes(budget.memory_bytes)}."
    return Answer(
        fits=candidate.fits,
        device=device_of(machine),
        budget_bytes=budget.memory_bytes,
        prediction=prediction,
        choice=describe(candidate),
        why=(summary, *upper_bound(subject)),
        about=about,
        planned_seconds=time.monotonic() - started,
    )


@contextmanager
def _settled() -> Iterator[None]:
    """Temporarily leave out what there was before when unreachable objects are collected, which each dry run does."""
    gc.collect()
    with own_garbage():
        yield


def _asked(planner: Planner, request: Request) -> Candidate:
    """Return the plan as it stands, predicted in full where nothing else is looked at."""
    subject = planner.subject
    size = request.plan.micro_batch
    rows = subject.window.rows if not isinstance(size, int) else min(size, subject.window.rows)
    plan = replace(request.plan, micro_batch=rows)
    prediction = planner.predict(plan, subject.techniques, rough=request.search)
    return Candidate(subject.techniques, rows, (), prediction, request.budget.holds(prediction))


def upper_bound(subject: Subject) -> tuple[str, ...]:
    """Return what was assumed where there is no data to look at, as a sentence."""
    if not subject.assumed:
        return ()
    sentence = f"An upper bound: {subject.assumed}."
    if subject.total_updates is None:
        sentence += " How long the run takes is not known without the number of examples; give train.updates."
    return (sentence,)


def device_of(machine: Machine) -> dict[str, Any]:
    """Return the device as an answer has it."""
    known = asdict(machine.device)
    names = ("name", "kind", "memory_bytes", "reserved", "calibrated")
    return {key: known[key] for key in names}


def impossible(answer: Answer) -> OutOfMemory:
    """Return the error of a run that was planned and does not fit."""
    return OutOfMemory(
        f"plan: {' '.join([*answer.why[:1], *answer.smallest_budgets])} Give it more memory, allow a coarser budget.fidelity, or run it all the same with --no-plan."
    )
