"""A search over settings: the values that may be tried, what became of each trial, and which is the best."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from snugfit.tools.many_runs.outcome import Outcome


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included: whole ones where both ends are; with `log`, equal factors are equally likely."""

    low: float | int
    high: float | int
    log: bool = False

    @property
    def whole(self) -> bool:
        return isinstance(self.low, int)

    def ends(self) -> tuple[float | int, ...]:
        """Return what has to hold for all others to hold."""
        return self.low, self.high

    def written(self) -> str:
        """Return the values as the command line takes them.

        >>> Range(1e-5, 0.01, log=True).written()
        'log:1e-05..0.01'
        """
        return f"{'log:' * self.log}{self.low}..{self.high}"


@dataclass(frozen=True)
class Choices:
    """Plain values, one of which is taken."""

    values: tuple[Any, ...]

    def ends(self) -> tuple[Any, ...]:
        """Return what has to hold for all others to hold: there are no others."""
        return self.values

    def texts(self) -> list[str]:
        """Return each value as JSON, by which they are told apart."""
        return [json.dumps(value, ensure_ascii=False) for value in self.values]

    def written(self) -> str:
        """Return the values as the command line takes them.

        >>> Choices((0.9, 0.99)).written()
        '0.9,0.99'
        """
        return ",".join(self.texts())


Parameter = Range | Choices
Space = Mapping[str, Parameter]
"""By the setting's dotted name."""


def combinations(space: Space) -> Iterator[dict[str, Any]]:
    """Yield every combination of the values of a space in which they can be counted."""
    values = [
        each.values if isinstance(each, Choices) else range(int(each.low), int(each.high) + 1)
        for each in space.values()
    ]
    for combination in itertools.product(*values):
        yield dict(zip(space, combination, strict=True))


def size(space: Space) -> int | None:
    """Return how many combinations there are; None where they cannot be counted.

    >>> size({"a": Choices((1, 2)), "b": Range(1, 3)}), size({"a": Range(0.0, 1.0)})
    (6, None)
    """
    counts = [
        len(each.values) if isinstance(each, Choices) else int(each.high) - int(each.low) + 1
        for each in space.values()
        if isinstance(each, Choices) or each.whole
    ]
    return math.prod(counts) if len(counts) == len(space) else None


State = Literal["begun", "finished", "pruned", "failed"]


@dataclass(frozen=True)
class Trial:
    """A combination of values, and what became of it; `number` counts from 1.

    `value` is the best of its evaluations, None where no number came of it; `reason` says why it was pruned or failed. One that is
    begun and has a reason has been told to stop.
    """

    number: int
    state: State
    parameters: Mapping[str, Any]
    value: float | None = None
    evaluations: tuple[float, ...] = ()
    reason: str | None = None
    run_dir: str | None = None
    seconds: float | None = None

    @property
    def name(self) -> str:
        return f"trial-{self.number}"

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "trial": self.number,
            "state": self.state,
            "value": self.value,
            "parameters": dict(self.parameters),
            "evaluations": list(self.evaluations),
            "reason": self.reason,
            "run_dir": self.run_dir,
            "seconds": self.seconds,
        }


@dataclass(frozen=True, repr=False)
class Tuned(Outcome):
    """The trials of a search that have ended.

    `metric` is what is looked for, `higher` whether more of it is better. Only a trial that was trained to its end can be `best`.
    """

    metric: str
    higher: bool
    space: Space
    trials: tuple[Trial, ...]

    @property
    def finished(self) -> bool:
        return len(self.trials) >= self.planned

    @property
    def best(self) -> Trial | None:
        """The best of the finished trials, the first of equal ones."""
        return next((each for each in self.ranked() if each.state == "finished"), None)

    def ranked(self) -> list[Trial]:
        """Return all trials: the finished ones first, then the pruned and the failed, each kind from the best to the worst."""

        def place(trial: Trial) -> tuple[int, float]:
            worst = -math.inf if self.higher else math.inf
            value = worst if trial.value is None else trial.value
            return ("finished", "pruned", "failed", "begun").index(
                trial.state
            ), -value if self.higher else value

        return sorted(self.trials, key=place)

    def best_so_far(self) -> list[float | None]:
        """Return, after each trial, the best value of the finished ones."""
        better = max if self.higher else min
        so_far: list[float | None] = []
        for trial in self.trials:
            known = [so_far[-1]] if so_far and so_far[-1] is not None else []
            here = [trial.value] if trial.state == "finished" and trial.value is not None else []
            so_far.append(better([*known, *here], default=None))
        return so_far

    def counts(self) -> dict[str, int]:
        """Return how many trials were finished, pruned and failed."""
        counted = Counter(each.state for each in self.trials)
        return {"finished": counted["finished"], "pruned": counted["pruned"], "failed": counted["failed"]}

    def summary_lines(self) -> list[str]:
        """Return what was found, and the best trials."""
        trials = [
            f"  {'' if each.value is None else f'{each.value:.4g}':>8}  {each.state:<9} "
            + ", ".join(
                f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"
                for name, value in each.parameters.items()
            )
            for each in self.ranked()[:8]
        ]
        return [f"Tuned: {self.summary()}", *trials, f"  folder  {self.folder}"]

    def page(self) -> str:
        from snugfit.tools.tune.page import render_tune_page  # which is of this

        return render_tune_page(self)

    def summary(self) -> str:
        """Return what was found, in a sentence."""
        counted = ", ".join(f"{count} {state}" for state, count in self.counts().items() if count)
        count = f"{len(self.trials)}" if self.finished else f"{len(self.trials)} of {self.planned}"
        done = f"{count} trials" + (f" ({counted})" if counted else "")
        best = self.best
        if best is None or best.value is None:
            return f"no trial was finished, of {done}"
        values = ", ".join(f"{name} {shown(value)}" for name, value in best.parameters.items())
        return f"{self.metric} {best.value:.4g} with {values}, the best of {done}"

    def as_dict(self) -> dict[str, Any]:
        best = self.best
        return {
            "name": self.name,
            "metric": self.metric,
            "direction": "max" if self.higher else "min",
            "finished": self.finished,
            "planned": self.planned,
            "stop_reason": self.stop_reason,
            "search": {name: each.written() for name, each in self.space.items()},
            "best": None if best is None else best.as_dict(),
            "counts": self.counts(),
            "trials": [each.as_dict() for each in self.trials],
            "folder": self.folder,
        }


def shown(value: Any) -> str:
    """Return a value of a setting as people read it.

    >>> shown(0.000123456), shown(16), shown([1, 2]), shown("relu")
    ('0.0001235', '16', '[1, 2]', 'relu')
    """
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
