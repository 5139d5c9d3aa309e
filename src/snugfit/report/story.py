"""The story of a run, read from its spool and put in order once, so that the page only has to write it down, and as a table of its updates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from snugfit.errors import RunFolderError
from snugfit.report.series import as_number
from snugfit.report.svg import Mark
from snugfit.tracking.spool import SPOOL_NAME, Event, read_events

IN_PROGRESS = "in progress"
VALIDATION = "validation_"  # before the names of what was scored, in a table of updates
MARK_PLACES = 100  # marks nearer to each other than this part of the axis become one


@dataclass(frozen=True)
class Incident:
    """A skipped window, a warning or a resume, at the update that had been reached."""

    kind: str
    update: float
    seconds: float
    text: str
    window: int | None = None


@dataclass(frozen=True)
class Story:
    """A run as its events tell it.

    `end` is None as long as no end has been written, so also when the process was killed. `predicted` and `compared` are the planner's
    figures and the measured ones to compare them with, by the same names; `certified` is the newest certificate. Each is empty where the run
    has not told it.
    """

    name: str
    id: str
    run: Event
    updates: Sequence[Event]
    evaluations: Sequence[Event]
    checkpoints: Sequence[Event]
    registered: Sequence[Event]
    answers: Sequence[Event]
    incidents: Sequence[Incident]
    end: Event | None
    started: float
    last_event: float
    seconds: float
    ignored: int = 0
    recipe: dict[str, Any] = field(default_factory=dict)
    predicted: dict[str, Any] = field(default_factory=dict)
    compared: dict[str, Any] = field(default_factory=dict)
    certified: dict[str, Any] = field(default_factory=dict)

    @property
    def status(self) -> str:
        return str(self.end.get("status", "finished")) if self.end else IN_PROGRESS

    @property
    def last_update(self) -> int:
        """Applied updates so far; an evaluation may stand alone, as in a run that only evaluates."""
        updates = [event.get("update") for event in (*self.updates[-1:], *self.evaluations[-1:])]
        return int(max((as_number(update) or 0 for update in updates), default=0))

    @property
    def monitored(self) -> str | None:
        """The metric that decides which update is the best; None if the recipe leaves it open."""
        return None if self.best_metric is None else self.best_metric.rpartition(":")[2]

    @property
    def best_metric(self) -> str | None:
        """Return it as the recipe writes it, with `min:` or `max:` before one of the user's own."""
        named = mapping(self.recipe.get("evaluate")).get("best")
        if named is None and self.best is not None and set(self.best[1]) == {"loss"}:
            return "loss"
        return None if named is None else str(named)

    @property
    def best(self) -> tuple[int, dict[str, Any]] | None:
        """The best update and its metrics: what the end says, else the last evaluation that was the best."""
        best = mapping((self.end or {}).get("best"))
        if not best:
            best = next((event for event in reversed(self.evaluations) if event.get("best")), {})
        update = as_number(best.get("update"))
        return None if update is None else (int(update), mapping(best.get("metrics")))

    def measured(self, name: str) -> list[float]:
        """Return the finite values of an update metric, in order."""
        values = (as_number(mapping(event.get("metrics")).get(name)) for event in self.updates)
        return [value for value in values if value is not None]


def mapping(value: object) -> dict[str, Any]:
    """Return the value if it is a dictionary, else an empty one: events may come from another version."""
    return value if isinstance(value, dict) else {}


def read_story(run_dir: Path) -> Story:
    """Read and order the events of a run's folder.

    Raises:
        RunFolderError: the folder has no spool that can be read, or nothing is in it.
    """
    events, resolved = read_events(run_dir / SPOOL_NAME), run_dir.resolve()
    if not events:
        raise RunFolderError(
            run_dir / SPOOL_NAME,
            "no event has been written yet, so there is nothing to report",
            "Wait for the first, or name another run.",
        )
    return story_of(events, resolved.parent.name, resolved.name, events.seconds, ignored=events.ignored)


def story_of(events: Sequence[Event], name: str, id: str, seconds: float, *, ignored: int = 0) -> Story:
    """Order events of a run, of which there is one at least.

    Args:
        name, id: of the run, where its events do not say them.
        seconds: that it has worked.
        ignored: lines that could not be read.
    """
    kinds: dict[str, list[Event]] = {}
    for event in events:
        kinds.setdefault(event["event"], []).append(event)
    run = kinds.get("run", [{}])[-1]
    # an end that was followed by a resume is not the end
    closing = [event for event in events if event["event"] in ("run", "resume", "end")]
    return Story(
        name=str(run.get("name") or name),
        id=str(run.get("id") or id),
        run=run,
        updates=kinds.get("update", []),
        evaluations=kinds.get("evaluation", []),
        checkpoints=kinds.get("checkpoint", []),
        registered=kinds.get("register", []),
        answers=kinds.get("answers", []),
        incidents=_incidents(events),
        end=closing[-1] if closing and closing[-1]["event"] == "end" else None,
        started=_time(events[0]),
        last_event=_time(events[-1]),
        seconds=seconds,
        ignored=ignored,
        recipe=mapping(run.get("recipe")),
        predicted=mapping(kinds.get("plan", [{}])[-1].get("predicted")),
        compared=kinds.get("measured", [{}])[-1],
        certified=kinds.get("certified", [{}])[-1],
    )


def _incidents(events: Sequence[Event]) -> list[Incident]:
    incidents, update, start = [], 0.0, _time(events[0])
    for event in events:
        kind = event["event"]
        if kind == "resume" or (kind == "update" and event.get("applied", True)):
            update = as_number(event.get("update")) or update
        if kind == "replan":  # what a reader has to know of in the same way
            kind = "warning"
        if kind not in ("skipped", "warning", "resume"):
            continue
        window = as_number(event.get("window"))
        text = {
            "skipped": str(event.get("reason") or "no reason given"),
            "warning": str(event.get("message") or "no message"),
            "resume": f"Resumed from update {update:,.0f}.",
        }[kind]
        place = None if window is None else int(window)
        incidents.append(Incident(kind, update, _time(event) - start, text, place))
    return incidents


def history_rows(story: Story) -> list[dict[str, Any]]:
    """Return `update`, `epoch` and the update's own numbers, and, where it was scored, those of the validation and whether they were the best."""
    rows: dict[Any, dict[str, Any]] = {}
    for event in (*story.updates, *story.evaluations):
        update = event.get("update")
        row = rows.setdefault(update, {"update": update, "epoch": event.get("epoch")})
        if event["event"] == "evaluation":
            row |= {f"{VALIDATION}{name}": value for name, value in mapping(event.get("metrics")).items()}
            row["best"] = bool(event.get("best"))
        else:
            row |= mapping(event.get("metrics"))
    return [rows[update] for update in sorted(rows, key=lambda update: update or 0)]


def marks(incidents: Sequence[Incident], end: float) -> list[Mark]:
    """Incidents as marks for the charts; those of one kind that would cover each other are one mark."""
    crowds: dict[tuple[str, int], list[Incident]] = {}
    for incident in incidents:
        crowds.setdefault((incident.kind, int(incident.update / end * MARK_PLACES)), []).append(incident)
    drawn = []
    for (kind, _), crowd in crowds.items():
        title = f"{kind.capitalize()} after update {crowd[0].update:,.0f}: {crowd[0].text}"
        more = f" (and {len(crowd) - 1:,} more here)" if len(crowd) > 1 else ""
        drawn.append(Mark(crowd[0].update, kind, title + more))
    return drawn


def _time(event: Event) -> float:
    return as_number(event.get("time")) or 0.0
