"""What a search found, in words and as an answer has it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from snugfit.core.entry import as_entry
from snugfit.planner.answer import Alternative, Choice, Rejected
from snugfit.planner.candidate import Budget, Candidate
from snugfit.planner.rungs import Techniques
from snugfit.planner.search import Search
from snugfit.planner.words import brief_bytes, brief_seconds


def describe(candidate: Candidate) -> Choice:
    """A plan as an answer has it."""
    precision = [each.card.name for each in candidate.techniques if each.card.precision]
    return Choice(
        micro_batch=candidate.micro_batch,
        numerics=" ".join(precision) or "fp32",
        techniques=tuple(as_entry(each) for each in candidate.techniques),
        added=candidate.added,
        fidelity=candidate.level.label,
    )


def alternatives(search: Search, chosen: Candidate | None) -> tuple[Alternative, ...]:
    """The runners-up: of each other set of rungs with which something fits the fastest plan; the fastest first."""
    return tuple(
        Alternative(
            each.rung,
            describe(each),
            each.found.peak_bytes,
            each.found.reserved_bytes,
            each.found.seconds_per_update,
        )
        for each in _others(search, chosen)
    )


def rejected(search: Search) -> tuple[Rejected, ...]:
    """What does not fit, with the least that it came to; what saves nothing; and what was refused, with the reason."""
    budget = search.budget
    fitting = {each.techniques for each in search.tried if each.fits}
    smallest = _of_each_set(search.tried, lambda each: each.found.reserved_bytes)
    useless = {each.rung for each in search.refused}
    over = [
        Rejected(each.rung, _over(each, budget), each.found.reserved_bytes, each.found.seconds_per_update)
        for each in smallest
        if each.techniques not in fitting and each.rung not in useless
    ]
    return (*over, *search.refused)


def _over(candidate: Candidate, budget: Budget) -> str:
    """By how much a plan does not fit."""
    found = candidate.found
    if found.most_bytes > budget.usable:
        return f"needs {brief_bytes(found.most_bytes)} of {brief_bytes(budget.usable)}"
    return f"needs {brief_bytes(found.host_peak_bytes)} of the host's {brief_bytes(budget.host_bytes or 0)}"


def why(chosen: Candidate, search: Search) -> str:
    """Why the choice is the choice, in a sentence."""
    found, asked = chosen.found, search.asked
    told = (
        f"{brief_seconds(found.seconds_per_update)} an update in {brief_bytes(found.reserved_bytes)} of "
        f"{brief_bytes(search.budget.memory_bytes)}"
    )
    others = _others(search, chosen)
    second = (
        f"; next is {others[0].rung} with {brief_seconds(others[0].found.seconds_per_update)}"
        if others
        else ""
    )
    if chosen.same(asked):
        return f"As the recipe says: {told}{second}."
    plain = (
        f"takes {brief_seconds(asked.found.seconds_per_update)}"
        if asked.fits
        else f"needs {brief_bytes(asked.found.reserved_bytes)}"
    )
    return (
        f"The fastest plan found that fits is {chosen.rung}: {told}. The recipe's own plan {plain}{second}."
    )


def why_not(search: Search, needed: dict[str, int]) -> str:
    """Why nothing fits, and what would do."""
    budget, least = search.budget, search.least()
    if least.found.most_bytes <= budget.usable:
        return f"Nothing that was tried fits the host: {least.rung} {_over(least, budget)}."
    told = "; ".join(f"{brief_bytes(bytes)} at {level}" for level, bytes in needed.items())
    return (
        f"Nothing that was tried fits in {brief_bytes(budget.memory_bytes)} with {budget.margin:.0%} left free. "
        f"The smallest that would do: {told or brief_bytes(least.found.reserved_bytes)}."
    )


def _others(search: Search, chosen: Candidate | None) -> list[Candidate]:
    fitting = [each for each in search.tried if each.fits and not each.same(chosen)]
    return _of_each_set(fitting, lambda each: each.found.seconds_per_update)


def _of_each_set(candidates: Sequence[Candidate], key: Callable[[Candidate], float]) -> list[Candidate]:
    """Of the plans of each set of techniques the first by `key`, in its order."""
    first: dict[Techniques, Candidate] = {}
    for each in sorted(candidates, key=key):
        first.setdefault(each.techniques, each)
    return list(first.values())
