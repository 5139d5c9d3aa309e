"""The learning-rate range test: the rate is raised from update to update, and the loss says which rates are good."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from snugfit.core.technique import Rate
from snugfit.errors import SettingError, nearest
from snugfit.step.step import Step, StepResult
from snugfit.tools.find_lr.lr_rules import (
    MINIMUM,
    STEEPEST,
    VALLEY,
    RateReading,
    Suggestion,
    doubts,
    recommended,
    suggest,
)
from snugfit.tools.preserved_step import preserved

DIVERGED = 4.0
"""Times its lowest value at which the smoothed loss ends the test, as in fastai."""

START, END, UPDATES, SMOOTHING = 1e-7, 10.0, 100, 0.95
"""Of a test by default; the part of the average that stays with each update is of `benchmarks/find_lr`."""

Tell = Callable[[int, RateReading], None]


@dataclass(frozen=True)
class RangeTest:
    """The result of a range test.

    `curve` has a reading for each update; a loss that was not finite is its last one. `suggestions` are by the rule's name,
    `doubts` say why none of them is recommended, and `verdict` is the test in words. `num_skipped` counts updates that were computed and not applied, as those that look
    for the scale of fp16.
    """

    curve: tuple[RateReading, ...]
    suggestions: Mapping[str, Suggestion]
    stopped: str
    verdict: str
    num_skipped: int = 0
    doubts: tuple[str, ...] = ()

    @property
    def recommended(self) -> str | None:
        """The rule whose rate is recommended; None where none can be said, or none relied on."""
        return recommended(self.suggestions) if self.suggestions and not self.doubts else None

    @property
    def learning_rate(self) -> float | None:
        """The recommended rate; None where there is none."""
        return None if self.recommended is None else self.suggestions[self.recommended].learning_rate

    def as_dict(self) -> dict[str, Any]:
        """Return plain values; a loss that is not finite is None."""
        return {
            "learning_rate": self.learning_rate,
            "recommended": self.recommended,
            "doubts": list(self.doubts),
            "suggestions": {
                name: {"learning_rate": each.learning_rate, "reason": each.reason}
                for name, each in self.suggestions.items()
            },
            "curve": [
                [reading.learning_rate, *(value if math.isfinite(value) else None for value in reading[1:])]
                for reading in self.curve
            ],
            "stopped": self.stopped,
            "verdict": self.verdict,
            "refused": self.num_skipped,
        }


def find_lr(
    step: Step,
    windows: Iterable[Any],
    *,
    start: float = START,
    end: float = END,
    updates: int = UPDATES,
    smoothing: float = SMOOTHING,
    part: str | None = None,
    tell: Tell = lambda *_: None,
) -> RangeTest:
    """Raise the rate of `step` exponentially from `start` to `end`, an update at each, and read the loss.

    The step is the run's own: its precision, micro-batches and techniques, as at this moment of the run. The rate stands in the
    place of the schedule: it is what `learning_rate` of the optimizer would be, and each parameter group keeps its multiple of it.
    The test ends early when the loss diverges or is not finite. Afterwards the step is what it was, bit for bit.

    Args:
        windows: of training data, as many as there are updates; those without a label that counts are passed over.
        smoothing: part of the average of the losses that stays with each update, in [0, 1).
        part: of the model whose rate is raised, one of `parts_of(step.optimizer)`, while all others stay as they are (rate 0).
            The rate is then this part's own.
        tell: is told each reading with its number.
    Raises:
        SettingError: an impossible setting, no such part, or all rates are 0.
    Source: Smith 2015, arXiv:1506.01186; exponential, and smoothed with the bias of the first readings taken out, as in
    Gugger 2018 (fastai). The loss of an update is that before it, so it speaks of the rates up to the one before.
    """
    _check(start, end, updates, smoothing)
    sweep = _Sweep(step.optimizer, part)
    with preserved(step):
        step.seams = replace(step.seams, schedule=sweep)
        curve, stopped, num_skipped = _swept(
            step, windows, sweep, _rates(start, end, updates), smoothing, tell
        )
    usable = [reading for reading in curve if math.isfinite(reading.loss)]
    suggestions, reason = suggest(usable) if len(usable) > num_skipped else ({}, _UNMOVED)
    diverged = stopped.startswith(_DIVERGED)
    doubted = (
        tuple(doubts(usable, suggestions, updates=updates, smoothing=smoothing, diverged=diverged))
        if suggestions
        else ()
    )
    verdict = reason or _verdict(suggestions, doubted)
    return RangeTest(tuple(curve), suggestions, stopped, verdict, num_skipped, doubted)


_DIVERGED = "the loss diverged"
_UNMOVED = "no update was applied, so the loss says nothing of the rates: look at what the techniques refuse, or at the data"


def parts_of(optimizer: torch.optim.Optimizer) -> dict[str, list[int]]:
    """Return the parts of a model that have rates of their own, each with the places of its parameter groups.

    With and without weight decay is one part.

    >>> weight, bias = torch.nn.Linear(1, 1).parameters()
    >>> groups = [{"params": [weight], "name": "head decay"}, {"params": [bias], "name": "head no_decay"}]
    >>> parts_of(torch.optim.SGD(groups, lr=0.1))
    {'head': [0, 1]}
    """
    parts: dict[str, list[int]] = {}
    for place, group in enumerate(optimizer.param_groups):
        name = group.get("name", f"group {place}")
        name = "the rest" if name in ("decay", "no_decay") else name.removesuffix(" no_decay")
        parts.setdefault(name.removesuffix(" decay"), []).append(place)
    return parts


class _Sweep:
    """A schedule that gives each group its multiple of `rate`, whatever update it is."""

    def __init__(self, optimizer: torch.optim.Optimizer, part: str | None) -> None:
        groups, parts = optimizer.param_groups, parts_of(optimizer)
        if part is not None and part not in parts:
            raise SettingError("part", f"the optimizer has none of the name '{part}'", nearest(part, parts))
        places = range(len(groups)) if part is None else parts[part]
        self._raised = {id(groups[place]) for place in places}
        self.unit = (
            _unit(groups) if part is None else max(float(groups[place]["initial_lr"]) for place in places)
        )
        if self.unit == 0:
            raise SettingError(
                "optimizer", "its rates are 0, so that there is nothing to raise", "Give it a learning rate."
            )
        self.rate = 0.0

    def __call__(self, _updates: int, group: Mapping[str, Any]) -> Rate:
        return Rate(self.rate / self.unit if id(group) in self._raised else 0.0)


def _unit(groups: list[dict[str, Any]]) -> float:
    """Return the optimizer's setting `learning_rate`, of which groups have multiples."""
    return max(float(group["initial_lr"]) / float(group.get("lr_factor", 1.0)) for group in groups)


def unit_of(optimizer: torch.optim.Optimizer) -> float:
    """Return the rate that the groups' own rates are multiples of: what `learning_rate` of the optimizer is before a range test."""
    return _unit(optimizer.param_groups)


def _swept(
    step: Step, windows: Iterable[Any], sweep: _Sweep, rates: list[float], smoothing: float, tell: Tell
) -> tuple[list[RateReading], str, int]:
    """Return the readings, why there are no more, and how many updates were not applied."""
    curve: list[RateReading] = []
    average, best, num_skipped = 0.0, math.inf, 0
    taken = iter(windows)
    for number, rate in enumerate(rates):
        sweep.rate = rate
        result = _next(step, taken)
        if result is None:
            return curve, f"the data ended after {number} of {len(rates)} updates", num_skipped
        if not math.isfinite(result.loss):
            curve.append(RateReading(rate, result.loss, curve[-1].smoothed if curve else math.nan))
            tell(number, curve[-1])
            return curve, _not_finite(number, rate), num_skipped
        num_skipped += not result.applied
        average = smoothing * average + (1 - smoothing) * result.loss
        smoothed = average / (1 - smoothing ** (number + 1))
        curve.append(RateReading(rate, result.loss, smoothed))
        tell(number, curve[-1])
        if smoothed > best + (DIVERGED - 1) * abs(best):
            return curve, f"{_DIVERGED} at a rate of {rate:.2g}", num_skipped
        best = min(best, smoothed)
    return curve, "the end of the range", num_skipped


def _next(step: Step, windows: Iterable[Any]) -> StepResult | None:
    """Return the result of the next window in which something counts; None where there is none."""
    results = (step(window) for window in windows)
    return next((result for result in results if result.weight > 0 or not math.isfinite(result.loss)), None)


def _not_finite(number: int, rate: float) -> str:
    if number == 0:
        return "the loss was not finite before anything was learned: look at the data"
    return f"the loss was not finite at a rate of {rate:.2g}"


def _verdict(suggestions: Mapping[str, Suggestion], doubted: Sequence[str]) -> str:
    if doubted:
        return f"no rate is recommended: {'. Also, '.join(doubted)}"
    rule = recommended(suggestions)
    text = f"{suggestions[rule].learning_rate:.2g}: {suggestions[rule].reason}"
    if rule == MINIMUM:
        return text
    low, high = suggestions[VALLEY].learning_rate, suggestions[MINIMUM].learning_rate
    return f"{text}. It is the lower one of {MINIMUM} and {STEEPEST}, as {MINIMUM} is {high / low:.2g} times as high as {VALLEY}"


def _rates(start: float, end: float, updates: int) -> list[float]:
    return [start * (end / start) ** (number / (updates - 1)) for number in range(updates)]


def _check(start: float, end: float, updates: int, smoothing: float) -> None:
    if not 0 < start < end < math.inf:
        raise SettingError(
            "start, end", f"must be rising rates above 0, found {start:g} and {end:g}", "Give such rates."
        )
    if updates < 2:
        raise SettingError("updates", f"must be at least 2, found {updates}", "Give 2 or more.")
    if not 0 <= smoothing < 1:
        raise SettingError("smoothing", f"must be in [0, 1), found {smoothing:g}", "Give such a number.")
