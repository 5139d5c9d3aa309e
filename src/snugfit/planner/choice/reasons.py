"""Reasons of a choice, or of none: the plan, what else would do and what was refused, in words and as an answer has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from snugfit.core.entry import as_entry
from snugfit.core.technique import Fidelity
from snugfit.planner.answers.answer import Alternative, Choice, Rejected
from snugfit.planner.answers.plan_figures import brief_bytes, brief_seconds, digits
from snugfit.planner.choice import channel
from snugfit.planner.choice.candidate import Budget, Candidate
from snugfit.planner.choice.goals import ALIKE, FREE
from snugfit.planner.choice.rungs import Techniques
from snugfit.planner.choice.search import Search
from snugfit.planner.devices.data_sheets import SHEETS


def describe(candidate: Candidate) -> Choice:
    """Return a plan as an answer has it."""
    precision = [each.card.name for each in candidate.techniques if each.card.precision]
    return Choice(
        micro_batch=candidate.micro_batch,
        numerics=" ".join(precision) or "fp32",
        techniques=tuple(as_entry(each) for each in candidate.techniques),
        added=candidate.added,
        fidelity=candidate.level.label,
    )


def alternatives(search: Search, choice: Candidate | None) -> tuple[Alternative, ...]:
    """Return the runners-up: of each other set of rungs with which something fits the fastest plan; the fastest first."""
    return tuple(
        Alternative(
            each.rung,
            describe(each),
            each.prediction.peak_bytes,
            each.prediction.reserved_bytes,
            each.prediction.seconds_per_update,
        )
        for each in _others(search, choice)
    )


def rejected(search: Search) -> tuple[Rejected, ...]:
    """Return what does not fit, with the least that it came to; what saves nothing; and what was refused, with the reason."""
    budget = search.budget
    fitting = {each.techniques for each in search.tried if each.fits}
    smallest = _of_each_set(search.tried, lambda each: each.prediction.reserved_bytes)
    useless = {each.rung for each in search.rejected}
    over = [
        Rejected(
            each.rung, _over(each, budget), each.prediction.reserved_bytes, each.prediction.seconds_per_update
        )
        for each in smallest
        if each.techniques not in fitting and each.rung not in useless
    ]
    return (*over, *search.rejected)


def _over(candidate: Candidate, budget: Budget) -> str:
    """Return by how much a plan does not fit."""
    prediction = candidate.prediction
    if prediction.most_bytes > budget.usable:
        return f"needs {brief_bytes(prediction.most_bytes)} of {brief_bytes(budget.usable)}"
    return (
        f"needs {brief_bytes(prediction.host_peak_bytes)} of the host's {brief_bytes(budget.host_bytes or 0)}"
    )


def why(choice: Candidate, search: Search) -> tuple[str, ...]:
    """Return why the choice is the choice, in sentences: what it takes, what its precision buys, and how much was looked at."""
    prediction, asked = choice.prediction, search.asked
    figures = (
        f"{brief_seconds(prediction.seconds_per_update)} an update in {brief_bytes(prediction.reserved_bytes)} of "
        f"{brief_bytes(search.budget.memory_bytes)}"
    )
    others = _others(search, choice)
    second = (
        f"; next is {others[0].rung} with {brief_seconds(others[0].prediction.seconds_per_update)}"
        if others
        else ""
    )
    plain = (
        f"takes {brief_seconds(asked.prediction.seconds_per_update)}"
        if asked.fits
        else f"needs {brief_bytes(asked.prediction.most_bytes)}"
    )
    goal = "fastest" if search.goal.name == "cheapest" else search.goal.name
    first = (
        f"As the recipe says: {figures}{second}."
        if choice.same(asked)
        else f"The {goal} plan that fits is {choice.rung}: {figures}. The recipe's own plan {plain}{second}."
    )
    return (first, *_price(choice, search), *_effort(search))


def _price(choice: Candidate, search: Search) -> Iterator[str]:
    """Yield what the precision that is given up buys, or what is paid for keeping it."""
    fitting = [each for each in search.tried if each.fits]
    fastest = min(fitting, key=lambda each: each.prediction.seconds_per_update)
    slower = choice.prediction.seconds_per_update / fastest.prediction.seconds_per_update
    if choice.level > max(FREE, search.asked.level):
        finer = search.goal.choose([each for each in fitting if each.level < choice.level])
        if finer is None:
            yield f"Of what is finer than {choice.level.label}, nothing that was looked at fits."
        else:
            times = finer.prediction.seconds_per_update / choice.prediction.seconds_per_update
            yield (
                f"What {choice.level.label} gives up changes what is learned; it is {digits(times)} times as fast as the best that "
                f"is finer, {finer.rung}."
            )
    elif slower > ALIKE:
        yield f"The fastest that was looked at, {fastest.rung} at {fastest.level.label}, takes {1 / slower:.0%} of the time."


def _effort(search: Search) -> Iterator[str]:
    """Yield how much was looked at: not all, and what is left is bounded in part alone."""
    if search.looked:
        left = "nor is any that differs from it by one technique" if search.complete else _left(search)
        yield f"{search.looked} of {search.count:,} plans were run. None of them is better by 5%, {left}."
    elif _is_short_of_seconds(search):
        yield f"None of {search.count:,} other plans was run, and some may be better: give it more --seconds."


def _run(search: Search) -> Iterator[str]:
    """Yield how much was looked at in vain."""
    if search.looked:
        more = "" if search.complete else f", and {_left(search)}"
        yield f"{search.looked} of {search.count:,} plans were run{more}."


def _left(search: Search) -> str:
    """Return that not all was looked at, and what to do where it was for want of time."""
    return "more was to be looked at" + (": give it more --seconds" if _is_short_of_seconds(search) else "")


def _is_short_of_seconds(search: Search) -> bool:
    """Return whether a search ended for want of time, and not as somebody asked for it."""
    return search.out_of_time and not channel.interrupted()


def why_not(search: Search, needed: Mapping[str, int]) -> tuple[str, ...]:
    """Return why nothing fits, what would do, and how to ask for it."""
    budget, least = search.budget, search.least()
    if least.prediction.most_bytes <= budget.usable:
        first = f"Nothing that was tried fits the host: {least.rung} {_over(least, budget)}. Give --host-memory, or a smaller model."
        return (first, *_coarser(search), *_run(search))
    room = f"in {brief_bytes(budget.memory_bytes)} with {budget.margin:.0%} left free"
    size = brief_bytes(least.prediction.reserved_bytes)
    if search.looked:
        first, need = f"Nothing that was tried fits {room}.", f" The smallest that would do: {size}."
    else:
        first = f"The recipe's own plan does not fit {room}, and no other was looked at."
        need = f" It takes {size}."
    first += "" if needed else need  # else the answer has the smallest budgets by level
    return (first, *_in_growing_segments(search), *_coarser(search), *_devices(search, needed), *_run(search))


def _in_growing_segments(search: Search) -> Iterator[str]:
    """Yield the least plan that would fit if the allocator left nothing unused between blocks of memory, as segments that grow hardly do."""
    machine, budget = search.planner.machine, search.budget
    if machine.type != "cuda" or machine.expandable_segments:
        return
    allocated = [
        (each.prediction.peak_bytes + machine.device.reserved, each)
        for each in search.tried
        if each.level <= search.coarsest
    ]
    fitting = [(size, each) for size, each in allocated if budget.has(size, each.prediction.host_peak_bytes)]
    if fitting:
        size, least = min(fitting, key=lambda pair: pair[0])
        yield (
            f"{least.rung} allocates {brief_bytes(size)}, and the rest lies unused between blocks of memory: "
            "set PYTORCH_ALLOC_CONF=expandable_segments:True, which a plan reads too, and plan again."
        )


def _coarser(search: Search) -> Iterator[str]:
    """Yield the finest level that would fit on this device and its host, and a coarser one that is worth it."""
    fitting = [each for each in search.tried if each.fits and each.level > search.coarsest]
    quickest = {
        level: min(each.prediction.seconds_per_update for each in fitting if each.level is level)
        for level in sorted({each.level for each in fitting})
    }
    if not quickest:
        return
    finest, seconds = next(iter(quickest.items()))
    yield f"On this device it fits at {finest.label}: --fidelity {finest.label}."
    for level, less in quickest.items():
        if search.goal.worth * less <= seconds:
            yield f"At {level.label} an update takes {brief_seconds(less)} or less, at {finest.label} {brief_seconds(seconds)}, of what was tried."
            return


def _devices(search: Search, needed: Mapping[str, int]) -> Iterator[str]:
    """Yield the smallest devices that would do at the level that is allowed."""
    known = [level for level in Fidelity if level <= search.coarsest and level.label in needed]
    level = min(known, key=lambda each: needed[each.label], default=search.coarsest)
    wanted = needed.get(level.label, 0)
    larger = sorted(
        (sheet.memory, name) for name, sheet in SHEETS.items() if wanted and sheet.memory * 2**30 >= wanted
    )
    if larger:
        devices = " or ".join(f"--device {name}" for _, name in larger[:2])
        yield f"At {level.label} it should fit on {devices}."


def _others(search: Search, choice: Candidate | None) -> list[Candidate]:
    fitting = [each for each in search.tried if each.fits and not each.same(choice)]
    return _of_each_set(fitting, lambda each: each.prediction.seconds_per_update)


def _of_each_set(candidates: Sequence[Candidate], key: Callable[[Candidate], float]) -> list[Candidate]:
    """Return the first plan of each set of techniques by `key`, in its order."""
    first: dict[Techniques, Candidate] = {}
    for each in sorted(candidates, key=key):
        first.setdefault(each.techniques, each)
    return list(first.values())
