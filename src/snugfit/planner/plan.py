"""A plan for a subject, a machine and a budget: the number before the run, and the choice."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from snugfit.core.job import Plan
from snugfit.errors import OutOfMemory
from snugfit.planner.answer import Answer
from snugfit.planner.dryrun import Subject
from snugfit.planner.predict import Machine, Planner
from snugfit.planner.search import Budget, Candidate, Search, alternatives, describe, faster, rejected
from snugfit.units import format_bytes

SEARCH_SECONDS = 45.0
"""After which no further rung is tried; what was found until then is compared."""


@dataclass(frozen=True)
class Request:
    """What is asked of the planner beside the subject.

    Args:
        search: False predicts the plan as it stands.
        seconds: for the search.
    """

    plan: Plan
    budget: Budget
    search: bool = True
    seconds: float = SEARCH_SECONDS


def make_plan(
    subject: Subject, machine: Machine, request: Request, about: Mapping[str, Any] | None = None
) -> Answer:
    """The plan.

    Raises:
        UserError: the model, the techniques or the settings cannot be run as the recipe has them.
    """
    started = time.monotonic()
    planner = Planner(subject, machine)
    search = Search(planner, request.plan, request.budget, started + request.seconds)
    asked = _asked(planner, request)
    chosen: Candidate | None = asked
    why = "As the recipe says."
    if request.search and not (asked.fits and asked.micro_batch == subject.window.rows):
        search.tried.append(asked)
        chosen = search.best()
        if chosen is not None:
            chosen = _checked(planner, request, chosen)
            why = faster(chosen, search)
    best = chosen or min(search.tried, key=lambda each: each.found.reserved_bytes)
    return Answer(
        fits=chosen is not None and chosen.fits,
        device=_device(machine),
        budget_bytes=request.budget.memory_bytes,
        prediction=best.found,
        choice=describe(best, request.plan),
        alternatives=alternatives(search, chosen),
        rejected=rejected(search),
        why=(
            why if chosen is not None and chosen.fits else _why_not(search, request.budget, best),
            *_upper_bound(subject),
            *machine.notes,
        ),
        would_fit={} if chosen is not None and chosen.fits else search.needed(),
        about=about or {},
        planned_seconds=time.monotonic() - started,
    )


def _asked(planner: Planner, request: Request) -> Candidate:
    """The plan as it stands, predicted in full."""
    subject = planner.subject
    size = request.plan.micro_batch
    rows = subject.window.rows if not isinstance(size, int) else min(size, subject.window.rows)
    found = planner.predict(replace(request.plan, micro_batch=rows), subject.techniques)
    return Candidate(subject.techniques, rows, (), found, request.budget.holds(found))


def _checked(planner: Planner, request: Request, chosen: Candidate) -> Candidate:
    """The choice again, in full: what the search took for granted is looked at."""
    plan = replace(request.plan, micro_batch=chosen.micro_batch)
    found = planner.predict(plan, chosen.techniques)
    return replace(chosen, found=found, fits=request.budget.holds(found))


def _upper_bound(subject: Subject) -> tuple[str, ...]:
    if not subject.assumed:
        return ()
    told = f"An upper bound: {subject.assumed}."
    if subject.total_updates is None:
        told += " How long the run takes is not known without the number of examples; give train.updates."
    return (told,)


def _device(machine: Machine) -> dict[str, Any]:
    known = asdict(machine.device)
    kept = ("name", "kind", "memory_bytes", "reserved", "calibrated")
    return {key: known[key] for key in kept}


def _why_not(search: Search, budget: Budget, best: Candidate) -> str:
    found = best.found
    if budget.host_bytes is not None and found.host_peak_bytes > budget.host_bytes:
        return f"The host has {format_bytes(budget.host_bytes)}, and the least that was found takes {format_bytes(found.host_peak_bytes)} of it."
    told = "; ".join(f"{format_bytes(bytes)} at {level}" for level, bytes in search.needed().items())
    return (
        f"Nothing that was tried fits in {format_bytes(budget.memory_bytes)} with {budget.margin:.0%} left free. "
        f"The smallest that would do: {told or format_bytes(found.reserved_bytes)}."
    )


def impossible(answer: Answer) -> OutOfMemory:
    """The error of a run that was planned and does not fit."""
    return OutOfMemory(f"plan: {answer.why[0]}")
