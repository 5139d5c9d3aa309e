"""The planner's answer: the number before the run, the choice, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import groupby
from typing import Any, NamedTuple

from snugfit.results.shown import Shown


@dataclass(frozen=True)
class Prediction:
    """The needs of one plan: memory in bytes at its peak, time in seconds, on one device.

    `peak_by_kind` adds up to `peak_bytes`, which is what the step asks the allocator for; `reserved_bytes` is what the device has to
    have for that, with the allocator's rounding and the context, and `doubt_bytes` how much more it may be, by what such predictions
    were found to be short of; `host_peak_bytes` is what the process takes of the host. `host_seconds` are those of an update in which
    a CPU starts operators and computes nothing, `step_seconds` those that it takes at least beside its passes, however many
    micro-batches it has. `confidence` says for memory and time how each was found: exact operators, hidden
    workspace, an upper bound, uncalibrated.
    """

    peak_bytes: int
    peak_by_kind: Mapping[str, int]
    peak_at: Mapping[str, str]  # segment, module, operator
    reserved_bytes: int
    host_peak_bytes: int
    seconds_per_update: float
    seconds_total: float | None
    tokens_per_second: float | None
    examples_per_second: float
    flops_per_update: int
    share_of_peak: float  # of what the device could compute in the time
    confidence: Mapping[str, str]
    timeline: Timeline | None = None
    peak_by_phase: Mapping[str, Mapping[str, int]] = field(
        default_factory=dict
    )  # by kind, at each phase's peak
    doubt_bytes: int = 0
    host_seconds: float = 0.0
    step_seconds: float = 0.0

    @property
    def most_bytes(self) -> int:
        """Return what the device has to have if the prediction is as short as any was."""
        return self.reserved_bytes + self.doubt_bytes


@dataclass(frozen=True)
class Timeline:
    """The memory over one update: `bytes_by_kind[kind][n]` at point n, which lies in `segments[n]`; `seconds[n]` since its beginning."""

    segments: tuple[str, ...]
    seconds: tuple[float, ...]
    bytes_by_kind: Mapping[str, tuple[int, ...]]

    def places(self) -> list[float]:
        """Return where each point lies in the update, from 0 to 1: by its time, or by its number where no time passes."""
        first, count = self.seconds[0], len(self.seconds)
        span = self.seconds[-1] - first
        if span > 0:
            return [(seconds - first) / span for seconds in self.seconds]
        return [point / max(1, count - 1) for point in range(count)]

    def totals(self) -> list[int]:
        """Return bytes of all kinds at each point."""
        return [sum(kinds) for kinds in zip(*self.bytes_by_kind.values(), strict=True)]

    def highest(self, columns: int) -> list[int]:
        """Return for each of `columns` equal stretches of the update the point in force there at which memory is highest.

        So it is drawn in a few columns without losing its peak. A point is in force until the next one, so a stretch without points has the
        last one before it.

        >>> Timeline(("forward",) * 4, (0.0, 0.1, 0.2, 1.0), {"weights": (1, 9, 3, 2)}).highest(4)
        [1, 2, 2, 2]
        """
        where, total = self.places(), self.totals()
        points, point, last = [], 0, 0
        for column in range(1, columns + 1):
            best = last
            while point < len(where) and (where[point] * columns < column or column == columns):
                if total[point] > total[best]:
                    best = point
                last, point = point, point + 1
            points.append(best)
        return points

    def bands(self) -> list[Band]:
        """Return the segments in order, each from its first point to that of the next.

        >>> Timeline(("forward", "forward", "backward"), (0.0, 1.0, 4.0), {"weights": (1, 1, 1)}).bands()
        [Band(name='forward', start=0.0, end=1.0), Band(name='backward', start=1.0, end=1.0)]
        """
        where = self.places()
        joined: list[Band] = []
        for name, points in groupby(range(len(where)), key=self.segments.__getitem__):
            start = where[next(points)]
            if joined:
                joined[-1] = joined[-1]._replace(end=start)
            joined.append(Band(name, start, 1.0))
        return joined


class Band(NamedTuple):
    """A segment of the update: its name, and where it begins and ends, in shares of the update."""

    name: str
    start: float
    end: float


@dataclass(frozen=True)
class Choice:
    """A plan: the micro-batch, the precision, and the techniques beyond the recipe's, as entries of a recipe."""

    micro_batch: int
    numerics: str
    techniques: tuple[Any, ...]  # entries, such as {"recompute": {}}
    added: tuple[str, ...] = ()  # names of those that the recipe does not ask for
    strategy: str = "single"
    devices: int = 1
    fidelity: str = "full"


@dataclass(frozen=True)
class Rejected:
    """A rung that was tried and is not the choice: the reason, and the number of bytes that it came to."""

    rung: str
    reason: str
    bytes: int | None
    seconds_per_update: float | None = None


@dataclass(frozen=True)
class Alternative:
    """A runner-up."""

    rung: str
    choice: Choice
    peak_bytes: int
    reserved_bytes: int
    seconds_per_update: float


@dataclass(frozen=True)
class FrontierPoint:
    """The fastest or the smallest plan of a level of fidelity that fits, of those that were looked at.

    Where none of a searched level fits, it is the level's smallest one.
    """

    level: str
    what: str  # "fastest" or "smallest"
    rung: str
    choice: Choice
    reserved_bytes: int
    host_bytes: int
    seconds_per_update: float
    tokens_per_second: float | None
    fits: bool = True


@dataclass(frozen=True)
class FrontierBound:
    """An estimate for a level of fidelity of which no plan was looked at: the least time of an update by its arithmetic alone."""

    level: str
    seconds_per_update: float
    tokens_per_second: float | None


@dataclass(frozen=True)
class Largest:
    """The largest batch, sequence or model that fits.

    `what` is one of these three, counted in `unit`; `beyond` is the first that does not fit, with the bytes
    that a device would have to have for it, None where nothing larger was looked at.
    """

    what: str
    value: int
    peak_bytes: int
    parameters: int
    unit: str
    beyond: int | None
    beyond_bytes: int | None


@dataclass(frozen=True, repr=False)
class Answer(Shown):
    """The plan of a run for a device and a budget.

    `why` says in sentences how the choice came about; `would_fit` maps each level of fidelity to the smallest budget in bytes at which
    something fits, where nothing does; `frontier` has the fastest and the smallest plan of each level that was looked at, and `bounds` what
    the others could come to at best; `command` runs the choice.
    """

    fits: bool
    device: Mapping[str, Any]  # name, memory_bytes, calibrated, …
    budget_bytes: int
    prediction: Prediction
    choice: Choice
    alternatives: tuple[Alternative, ...] = ()
    rejected: tuple[Rejected, ...] = ()
    why: tuple[str, ...] = ()
    would_fit: Mapping[str, int] = field(default_factory=dict)
    frontier: tuple[FrontierPoint, ...] = ()
    bounds: tuple[FrontierBound, ...] = ()
    command: str = ""
    about: Mapping[str, Any] = field(default_factory=dict)  # recipe, model, parameters, data, sizes
    rules: tuple[
        str, ...
    ] = ()  # the decision on how many devices and how they share the work, with its numbers
    planned_seconds: float = 0.0
    largest: Largest | None = None

    def with_notes(self, notes: Sequence[str]) -> Answer:
        """Return the answer with sentences behind the first of `why`."""
        return replace(self, why=(*self.why[:1], *notes, *self.why[1:]))

    @property
    def smallest_budgets(self) -> tuple[str, ...]:
        """Return the sentence that names the smallest budget of each level; none where it is not known, or something fits."""
        from snugfit.planner.answers.plan_figures import brief_bytes  # which is of this

        budgets = "; ".join(f"{brief_bytes(size)} at {level}" for level, size in self.would_fit.items())
        return (f"The smallest that would do: {budgets}.",) if budgets else ()

    def summary_lines(self) -> list[str]:
        """Return whether it fits, what was chosen, the memory and the time."""
        from snugfit.planner.answers import plan_figures  # which is of this

        choice = plan_figures.choice_words(self.choice)
        speed = ", ".join(plan_figures.speed_words(self.prediction))
        why = [f"  why     {sentence}" for sentence in self.with_notes(self.smallest_budgets).why[:4]]
        return [
            f"Plan: {plan_figures.headline(self)}",
            f"  chosen  {', '.join(choice)}",
            f"  speed   {speed}",
            *why,
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, the prediction's beside the others; without the timeline, which is for pictures."""
        values = asdict(self)
        prediction = values.pop("prediction")
        del prediction["timeline"]
        first = {name: values.pop(name) for name in ("fits",)}
        return {**first, **prediction, **values}
