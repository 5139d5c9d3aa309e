"""How a run was to be run, as sections of its page: the plan, predicted beside measured, the machine and versions."""

from __future__ import annotations

from typing import Any

from snugfit.planner.words import compare_line
from snugfit.report.parts import facts, flat
from snugfit.report.story import Story, mapping
from snugfit.report.svg import escape

_PREDICTED = (
    "peak_bytes",
    "reserved_bytes",
    "host_peak_bytes",
    "budget_bytes",
    "seconds_per_update",
    "seconds_total",
)
"""Of a plan, what is told on the page of its run."""


def setup(story: Story, plan: dict[str, Any]) -> str:
    machine, versions = mapping(story.run.get("machine")), mapping(story.run.get("versions"))
    body = "".join(
        f"<div><h3>{title}</h3>{facts(flat(values))}</div>"
        for title, values in (("Plan", _of_plan(plan)), ("Machine", machine), ("Versions", versions))
        if values
    )
    return f"<section><h2>How it was run</h2><div class=columns>{body}</div></section>" if body else ""


def _of_plan(plan: dict[str, Any]) -> dict[str, Any]:
    """What a plan that was searched for chose, and what it predicted in all; of the rest there is a page by `snugfit plan --html`."""
    if "choice" not in plan:
        return plan
    chosen = {key: value for key, value in mapping(plan["choice"]).items() if key != "techniques"}
    return chosen | {key: plan[key] for key in _PREDICTED if plan.get(key) is not None}


def planned(story: Story) -> str:
    """What had been predicted beside what was measured, for a run that was planned and has measured it."""
    line = compare_line(story.predicted, story.compared) if story.predicted and story.compared else ""
    if not line:
        return ""
    note = "In brackets: by how much of the measured value the prediction lay above it."
    return (
        f"<section><h2>Predicted and measured</h2><p>{escape(line[:1].upper() + line[1:])}.</p>"
        f"<p class=note>{note}</p></section>"
    )
