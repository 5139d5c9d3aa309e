"""A plan for a subject, a machine and a budget: the number before the run, and the choice."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

from snugfit.core.job import Plan
from snugfit.core.technique import Technique
from snugfit.errors import OutOfMemory
from snugfit.planner.answer import Answer
from snugfit.planner.candidate import Budget, Candidate
from snugfit.planner.device import Machine
from snugfit.planner.dryrun import Subject
from snugfit.planner.goals import SLOWER, WORTH
from snugfit.planner.predict import Planner
from snugfit.planner.probe import measure
from snugfit.planner.search import Search
from snugfit.planner.told import alternatives, describe, rejected, why, why_not
from snugfit.planner.words import brief_bytes

SEARCH_SECONDS = 45.0
"""After which no further rung is tried; what was found until then is compared."""


@dataclass(frozen=True)
class Request:
    """What is asked of the planner beside the subject.

    Args:
        search: False predicts the plan as it stands.
        contented: what fits as it stands is the choice, whether or not something else is faster.
        probe: measure on the device itself instead, for models that cannot be run on fake tensors.
        seconds: for the search.
        export: the tool that the plan is to be written for; `rungs` says of a technique whether it may be weighed for it.
        goal: one of `goals.GOALS`; worth, slower, price: as `Target` has them.
    """

    plan: Plan
    budget: Budget
    search: bool = True
    contented: bool = False
    probe: bool = False
    seconds: float = SEARCH_SECONDS
    export: str | None = None
    rungs: Callable[[Technique], bool] = lambda technique: True
    goal: str = "fastest"
    worth: float = WORTH
    slower: float = SLOWER
    price: float | None = None


def make_plan(
    subject: Subject,
    machine: Machine,
    request: Request,
    about: Mapping[str, Any] | None = None,
    planner: Planner | None = None,
) -> Answer:
    """The plan.

    Args:
        planner: predicts in place of one for a single device.
    Raises:
        UserError: the model, the techniques or the settings cannot be run as the recipe has them.
    """
    started = time.monotonic()
    with _settled():
        planner = planner or Planner(subject, machine)
        search = Search(
            planner,
            request.plan,
            request.budget,
            started + request.seconds,
            _asked(planner, request),
            may_add=request.rungs,
            even=request.export is not None,
        )
        content = not request.search or (request.contented and search.asked.fits)
        chosen = search.fastest() if content else _chosen(search)
        needed: dict[str, int] = {}
        if chosen is None and request.search:
            needed = search.needed()
            chosen = _chosen(search)  # what needs the least was only looked for now, and may fit
    best = chosen or search.least()
    return Answer(
        fits=chosen is not None,
        device=device_of(machine),
        budget_bytes=request.budget.memory_bytes,
        prediction=best.found,
        choice=describe(best),
        alternatives=alternatives(search, chosen),
        rejected=rejected(search),
        why=(
            why_not(search, needed) if chosen is None else why(chosen, search),
            *upper_bound(subject),
            *machine.notes,
        ),
        would_fit=needed,
        about=about or {},
        planned_seconds=time.monotonic() - started,
    )


def make_measured_plan(
    subject: Subject, machine: Machine, request: Request, about: Mapping[str, Any]
) -> Answer:
    """What the plan as it stands needs, measured with few examples on the device itself.

    Raises:
        SettingError: the device is not here.
        OutOfMemory: two examples are too many.
    """
    started = time.monotonic()
    found = measure(subject, request.plan, subject.techniques, machine)
    size, budget = request.plan.micro_batch, request.budget
    rows = min(size, subject.window.rows) if isinstance(size, int) else subject.window.rows
    candidate = Candidate(subject.techniques, rows, (), found, budget.holds(found))
    told = f"Measured on this machine: {brief_bytes(found.reserved_bytes)} of {brief_bytes(budget.memory_bytes)}."
    return Answer(
        fits=candidate.fits,
        device=device_of(machine),
        budget_bytes=budget.memory_bytes,
        prediction=found,
        choice=describe(candidate),
        why=(told, *upper_bound(subject)),
        about=about,
        planned_seconds=time.monotonic() - started,
    )


@contextmanager
def _settled() -> Iterator[None]:
    """Within, what there was before is not looked at when unreachable objects are collected, which each dry run does."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def _asked(planner: Planner, request: Request) -> Candidate:
    """The plan as it stands, predicted in full."""
    subject = planner.subject
    size = request.plan.micro_batch
    rows = subject.window.rows if not isinstance(size, int) else min(size, subject.window.rows)
    found = planner.predict(replace(request.plan, micro_batch=rows), subject.techniques)
    return Candidate(subject.techniques, rows, (), found, request.budget.holds(found))


def _chosen(search: Search) -> Candidate | None:
    """The best plan, predicted again in full: what the search took for granted is looked at."""
    asked = search.asked
    if asked.fits and asked.micro_batch == search.rows and search.planner.machine.type != "cpu":
        return asked  # nothing is faster than the whole window at once; on a CPU less may be, which its caches hold
    chosen = search.best()
    while chosen is not None and chosen is not asked:
        plan = replace(search.plan, micro_batch=chosen.micro_batch)
        chosen = search.checked(chosen, search.planner.predict(plan, chosen.techniques))
        if chosen.fits:
            break
        chosen = search.fastest()
    return chosen


def upper_bound(subject: Subject) -> tuple[str, ...]:
    """What was assumed where there is no data to look at, as a sentence."""
    if not subject.assumed:
        return ()
    told = f"An upper bound: {subject.assumed}."
    if subject.total_updates is None:
        told += " How long the run takes is not known without the number of examples; give train.updates."
    return (told,)


def device_of(machine: Machine) -> dict[str, Any]:
    """The device as an answer has it."""
    known = asdict(machine.device)
    kept = ("name", "kind", "memory_bytes", "reserved", "calibrated")
    return {key: known[key] for key in kept}


def impossible(answer: Answer) -> OutOfMemory:
    """The error of a run that was planned and does not fit."""
    return OutOfMemory(
        f"plan: {answer.why[0]} Give it more memory, allow a coarser budget.fidelity, or run it all the same with --no-plan."
    )
