"""The limit of an update, the culprits, and advice: from what was measured alone."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from snugfit.planner.answers.plan_figures import brief_seconds, share
from snugfit.tools.profile.operators import Operator

LIMITS = ("data", "launch", "memory", "compute")
CULPRITS = 5
_WORTH = 0.1
"""Share of an update below which nothing is said about it."""

_GAIN = 1.02
"""Below that a change is not worth trying."""

_BETWEEN = "between operators"
_MOST_WORKERS = 16

VERDICTS = {
    "data": "Data limits: the step waits for its examples",
    "launch": "Launching limits: more time goes by between the operators, and in starting them, than in their work",
    "memory": "Memory bandwidth limits: most of the time goes into operators that move bytes and compute little",
    "compute": "Computing limits: most of the time goes into matrix products and the like",
}


@dataclass(frozen=True)
class Occasional:
    """Work that is done now and then: seconds each time, and after how many updates."""

    seconds: float
    every: int


@dataclass(frozen=True)
class Measured:
    """An update as it was measured, in seconds.

    Args:
        phases: what each takes, "data" among them; they add up to `seconds`.
        operators: of one update, outside of the loading of data.
        launch: seconds that one operator takes however little it does.
        busy: share of the loading of a window in which the processor computes; the rest of it waits for a disk or a network.
        padding: share of the tokens that is padding; 0 where there are none.
        faster: how many times faster the device computes in bf16 than in the numbers that are used.
    """

    seconds: float
    phases: Mapping[str, float]
    operators: tuple[Operator, ...]
    launch: float
    occasional: Mapping[str, Occasional] = field(default_factory=dict)
    micro_batches: int = 1
    num_workers: int = 0
    cores: int = 1
    busy: float = 1.0
    padding: float = 0.0
    faster: float = 1.0
    techniques: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Culprit:
    """A phase, an operator, or the time between operators, and what limits it.

    It has seconds of an update, and their share of the run, in which what is done now and then counts too.
    """

    name: str
    seconds: float
    share: float
    limit: str
    phase: str = ""
    module: str = ""

    def words(self) -> str:
        """Return it in a line.

        >>> Culprit("aten::addmm", 0.012, 0.4, "compute", "forward", "head").words()
        'aten::addmm: 12 ms, 40% (compute), most of it in forward, head'
        """
        place = ", ".join(filter(None, (self.phase, self.module)))
        where = f", most of it in {place}" if place and place != self.name else ""
        return f"{self.name}: {brief_seconds(self.seconds)}, {share(self.share)} ({self.limit}){where}"


@dataclass(frozen=True)
class Advice:
    """A change to try, and how many times as fast an update of the same examples would be at most; `by` says how that is known."""

    change: str
    gain: float
    by: str

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {"try": self.change, "gain": self.gain, "by": self.by}


Predict = Callable[[str], float | None]
"""The planner's gain from a change, by the name of a technique or "micro_batch"; None where it has none."""


def limits(measured: Measured) -> dict[str, float]:
    """Return seconds of an update by what limits them; they add up to its seconds.

    An operator goes whole to what its work is limited by: its FLOPs or its bytes at the device's peak, or the launch of it where
    that takes longer than both.
    """
    seconds = dict.fromkeys(LIMITS, 0.0)
    seconds["data"] = measured.phases.get("data", 0.0)
    for each in measured.operators:
        seconds[limit_of(each, measured.launch)] += each.seconds
    seconds["launch"] += max(0.0, measured.seconds - sum(seconds.values()))
    return seconds


def limit_of(operator: Operator, launch: float) -> str:
    """Return what limits an operator: launch, memory or compute."""
    bounds = {
        "launch": operator.calls * launch,
        "memory": operator.work.memory_seconds,
        "compute": operator.work.compute_seconds,
    }
    return max(bounds, key=bounds.__getitem__)


def culprits(measured: Measured) -> tuple[Culprit, ...]:
    """Return where the time goes, the largest first; what is done now and then counts by its share of an update."""

    def culprit(name: str, seconds: float, limit: str, phase: str = "", module: str = "") -> Culprit:
        return Culprit(name, seconds, seconds / whole, limit, phase, module)

    whole = measured.seconds + sum(each.seconds / each.every for each in measured.occasional.values())
    data = measured.phases.get("data", 0.0)
    between = measured.seconds - data - sum(each.seconds for each in measured.operators)
    named = [culprit("data", data, "data", "data"), culprit(_BETWEEN, between, "launch")]
    named += [
        culprit(each.name, each.seconds, limit_of(each, measured.launch), each.phase, each.module)
        for each in measured.operators
    ]
    named += [
        culprit(name, each.seconds / each.every, name, name) for name, each in measured.occasional.items()
    ]
    return tuple(
        sorted((each for each in named if each.seconds > 0), key=lambda each: -each.seconds)[:CULPRITS]
    )


def verdict(measured: Measured) -> tuple[str, str]:
    """Return what limits, and that in words with its seconds."""
    seconds = limits(measured)
    limit = max(LIMITS, key=seconds.__getitem__)
    rest = ", ".join(
        f"{name} {share(seconds[name] / measured.seconds)}"
        for name in LIMITS
        if name != limit and seconds[name] > 0
    )
    sentence = f"{VERDICTS[limit]}: {brief_seconds(seconds[limit])} of {brief_seconds(measured.seconds)}, {share(seconds[limit] / measured.seconds)}"
    return limit, f"{sentence} ({rest})." if rest else f"{sentence}."


def advise(measured: Measured, predict: Predict = lambda _: None) -> tuple[Advice, ...]:
    """Return what to try, the largest gain first.

    Args:
        predict: is asked before anything is reckoned from what was measured.
    """
    seconds = limits(measured)
    advice = [
        *_on_data(measured, seconds),
        *_on_launches(measured, seconds, predict),
        *_on_numbers(measured, seconds, predict),
        *_on_padding(measured),
        *_on_occasions(measured),
    ]
    return tuple(sorted((each for each in advice if each.gain >= _GAIN), key=lambda each: -each.gain))


def _on_data(measured: Measured, seconds: Mapping[str, float]) -> Iterator[Advice]:
    data = seconds["data"]
    if data < _WORTH * measured.seconds:
        return
    step = measured.seconds - data
    # each worker loads a window while the step takes one; as many as make the windows in time, of those that cores can run
    wanted = math.ceil(data / max(step, 1e-9)) + measured.num_workers
    served = int(max(1, measured.cores - 1) / max(measured.busy, 1 / _MOST_WORKERS))
    workers = min(wanted, served, _MOST_WORKERS)
    if workers <= measured.num_workers:
        yield Advice(
            "Make examples cheaper to load: prepare them once and keep them, for the cores are all taken by workers.",
            measured.seconds / max(step, 1e-9),
            "arithmetic: if data took no time",
        )
        return
    left = max(step, data * max(1, measured.num_workers) / workers) if wanted > workers else step
    yield Advice(
        f"plan.num_workers={workers}: loads beside the training.",
        measured.seconds / max(left, 1e-9),
        f"arithmetic: {share(data / measured.seconds)} of an update is waiting for data",
    )


def _on_launches(measured: Measured, seconds: Mapping[str, float], predict: Predict) -> Iterator[Advice]:
    launch = seconds["launch"]
    if launch < _WORTH * measured.seconds:
        return
    part = share(launch / measured.seconds)
    if measured.micro_batches > 1:
        known = predict("micro_batch")
        left = measured.seconds - launch * (1 - 1 / measured.micro_batches)
        yield Advice(
            f"A larger plan.micro_batch, up to the whole window in place of {measured.micro_batches} parts, if it fits.",
            known or measured.seconds / left,
            "the planner" if known else f"arithmetic: launches are {part} and would be as many fewer",
        )
    else:
        yield Advice(
            "A window of twice the size, per example; it changes what is learned.",
            2 * measured.seconds / (2 * measured.seconds - launch),
            f"arithmetic: launches are {part} and would be half as many for each example",
        )
    if "compile" not in measured.techniques:
        yield Advice(
            "The technique compile: fewer and larger operators.",
            measured.seconds / max(measured.seconds - launch, 1e-9),
            f"arithmetic: at most, if all launches ({part}) went",
        )


def _on_numbers(measured: Measured, seconds: Mapping[str, float], predict: Predict) -> Iterator[Advice]:
    compute, memory = seconds["compute"], seconds["memory"]
    if measured.techniques & {"bf16", "fp16", "pure_bf16", "fp8", "int8"}:
        return
    if compute + memory < _WORTH * measured.seconds:
        return
    known = predict("bf16")
    left = measured.seconds - memory / 2 - compute * (1 - 1 / measured.faster)
    yield Advice(
        "plan.numerics=bf16: half the bytes, and faster products where the device has them; it changes the rounding.",
        known or (measured.seconds / max(left, 1e-9) if measured.faster > 1 else 1.0),
        "the planner"
        if known
        else f"arithmetic: memory {share(memory / measured.seconds)} halved, products {measured.faster:.3g} times as fast",
    )


def _on_padding(measured: Measured) -> Iterator[Advice]:
    passes = sum(measured.phases.get(name, 0.0) for name in ("forward", "loss", "backward"))
    if measured.padding < _WORTH or measured.techniques & {"packing", "length_grouping"}:
        return
    yield Advice(
        "The technique length_grouping, or packing: micro-batches of texts of one length.",
        measured.seconds / (measured.seconds - measured.padding * passes),
        f"arithmetic: {share(measured.padding)} of the tokens are padding",
    )


def _on_occasions(measured: Measured) -> Iterator[Advice]:
    settings = {"evaluation": "evaluate.every", "save": "checkpoint.every"}
    whole = measured.seconds + sum(each.seconds / each.every for each in measured.occasional.values())
    for name, each in measured.occasional.items():
        spent = each.seconds / each.every
        if spent >= _WORTH * whole:
            yield Advice(
                f"{settings[name]} of {2 * each.every} updates in place of {each.every}.",
                whole / (whole - spent / 2),
                f"arithmetic: {name} is {share(spent / whole)} of the run",
            )
