"""A picture of what each level of fidelity offers: the time of an update against the memory of a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from snugfit.planner.answers import plan_figures
from snugfit.planner.answers.answer import Alternative, Answer, FrontierPoint
from snugfit.report.charts import BYTES
from snugfit.report.stack import BUDGET_IN_VIEW
from snugfit.report.svg import Chart, Dot, Frame, Mark, Series, escape, figure

_LEVELS = ("full", "mixed", "compact", "adapters", "quantized")
"""From the finest, each with its tone."""

_FEWEST = 4
"""Units that the memory axis is long at least."""

_ROOM = 1.08
"""Times the largest value that an axis reaches."""


@dataclass(frozen=True)
class _Plan:
    """A plan that is drawn."""

    level: str
    bytes: int
    seconds: float
    rung: str
    ringed: bool = False

    def dot(self, size: float) -> Dot:
        """Return its dot, where a unit of memory has so many bytes."""
        figures = f"{plan_figures.brief_seconds(self.seconds)} in {plan_figures.brief_bytes(self.bytes)}"
        return Dot(self.bytes / size, self.seconds, f"{self.rung} ({self.level}): {figures}", self.ringed)


def drawn_frontier(answer: Answer) -> str:
    """Return the chart of all plans that are told; "" where there is nothing to compare.

    A line goes through the best of each level, and a ring is around the choice.
    """
    plans = _plans(answer)
    if len(plans) < 2:
        return ""
    largest, slowest = max(each.bytes for each in plans), max(each.seconds for each in plans)
    in_view = answer.budget_bytes <= BUDGET_IN_VIEW * largest
    largest = max(largest, answer.budget_bytes) if in_view else largest
    # an axis has whole numbers, of which there have to be a few
    unit, size = next(each for each in BYTES if largest >= _FEWEST * each[1] or each[1] == 1)
    budget = f"the budget, {plan_figures.brief_bytes(answer.budget_bytes)}"
    frame = Frame(
        end=_ROOM * largest / size,
        marks=[Mark(answer.budget_bytes / size, "resume", budget)] if in_view else [],
        x_name=f"memory of a device, {unit}",
        noun="memory",
    )
    series = [
        Series(
            level,
            [(each.bytes / size, each.seconds) for each in _undominated(plans, level)],
            tone=tone,
            dots=[each.dot(size) for each in plans if each.level == level],
            scattered=True,
        )
        for tone, level in enumerate(_LEVELS, 1)
        if any(each.level == level for each in plans)
    ]
    alone = f", all plans at {series[0].name}" if len(series) == 1 else ""  # one curve has no legend
    chart = Chart("Time of an update", f"seconds{alone}", series, wide=True, limits=(0.0, slowest))
    ring = "the choice" if answer.fits else "the smallest plan there was"
    line = f"; the dashed line is {budget}" if in_view else ""
    note = f"Each dot is a plan; the ring is {ring}{line}. A line joins the plans of a level beside which none is both smaller and faster."
    return f"<div class=charts>{figure(chart, frame)}</div><p class=note>{escape(note)}</p>"


def _plans(answer: Answer) -> list[_Plan]:
    """Return the plans that are told, each once, and the choice first."""
    prediction = answer.prediction
    choice = _Plan(
        answer.choice.fidelity, prediction.reserved_bytes, prediction.seconds_per_update, _name(answer), True
    )
    others: list[FrontierPoint | Alternative] = [*answer.frontier, *answer.alternatives]
    plans = {(choice.bytes, choice.seconds): choice}
    for each in others:
        one = _Plan(each.choice.fidelity, each.reserved_bytes, each.seconds_per_update, each.rung)
        plans.setdefault((one.bytes, one.seconds), one)
    return list(plans.values())


def _name(answer: Answer) -> str:
    added = " + ".join(answer.choice.added) or "as the recipe says"
    return f"{added} + micro-batch {answer.choice.micro_batch}"


def _undominated(plans: Sequence[_Plan], level: str) -> list[_Plan]:
    """Return the plans of a level beside which none is both smaller and faster, by their memory."""
    line: list[_Plan] = []
    for each in sorted(
        (each for each in plans if each.level == level), key=lambda each: (each.bytes, each.seconds)
    ):
        if not line or each.seconds < line[-1].seconds:
            line.append(each)
    return line
