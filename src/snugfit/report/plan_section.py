"""The sections of a page on how the run was to be run: the plan, predicted beside measured, the machine and versions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from snugfit.planner.answers.answer import Timeline
from snugfit.planner.answers.plan_figures import compare_line, memory_note
from snugfit.report.html import facts, flat
from snugfit.report.series import as_number
from snugfit.report.stack import layered, place_of_peak
from snugfit.report.story import Story, mapping
from snugfit.report.svg import escape
from snugfit.system.json_text import parse_json

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
    """Return the section of the plan, the machine and the versions of libraries."""
    machine, versions = mapping(story.run.get("machine")), mapping(story.run.get("versions"))
    body = "".join(
        f"<div><h3>{title}</h3>{facts(flat(values))}</div>"
        for title, values in (("Plan", _of_plan(plan)), ("Machine", machine), ("Versions", versions))
        if values
    )
    return f"<section><h2>How it was run</h2><div class=columns>{body}</div></section>" if body else ""


def _of_plan(plan: dict[str, Any]) -> dict[str, Any]:
    """Return what a plan that was searched for chose, and what it predicted in all; of the rest there is a page by `snugfit plan --html`."""
    if "choice" not in plan:
        return plan
    choice = {key: value for key, value in mapping(plan["choice"]).items() if key != "techniques"}
    return choice | {key: plan[key] for key in _PREDICTED if plan.get(key) is not None}


def over_an_update(timeline: Timeline | None, plan: dict[str, Any]) -> str:
    """Return the memory over an update, as the plan predicted it; "" where none is kept with the run."""
    if timeline is None:
        return ""
    at = {str(key): str(value) for key, value in mapping(plan.get("peak_at")).items()}
    where = place_of_peak(at, int(as_number(plan.get("peak_bytes")) or 0), timeline)
    note = "Predicted by the plan before the run began, without what the process itself takes."
    return f"<section><h2>Memory, predicted</h2><div class=charts>{layered(timeline, where)}</div><p class=note>{note}</p></section>"


def read_timeline(path: Path) -> Timeline | None:
    """Return the memory over an update as a run keeps it; None where there is none that can be read.

    >>> read_timeline(Path("there/is/none.json")) is None
    True
    """
    try:
        content = parse_json(path.read_text(encoding="utf-8"))
        segments = tuple(str(each) for each in content["segments"])
        seconds = tuple(float(each) for each in content["seconds"])
        kinds = {
            str(kind): tuple(int(each) for each in sizes) for kind, sizes in content["bytes_by_kind"].items()
        }
    except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError):
        return None
    lengths = {len(each) for each in (segments, seconds, *kinds.values())}
    return Timeline(segments, seconds, kinds) if kinds and lengths == {len(segments)} and segments else None


def planned(story: Story) -> str:
    """Return what had been predicted beside what was measured, for a run that was planned and has measured it."""
    line = compare_line(story.predicted, story.compared) if story.predicted and story.compared else ""
    if not line:
        return ""
    note = "In brackets: by how much what was measured lies above or below what was predicted. Memory is the peak of the whole run."
    if reason := memory_note(story.predicted, story.compared, story.run):
        note += f" {reason[:1].upper()}{reason[1:]}."
    return (
        f"<section><h2>Predicted and measured</h2><p>{escape(line[:1].upper() + line[1:])}.</p>"
        f"<p class=note>{note}</p></section>"
    )
