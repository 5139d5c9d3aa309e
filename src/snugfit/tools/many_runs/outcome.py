"""The outcome of many runs, and the page that every one of them has around its own sections."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from snugfit.report.page import document
from snugfit.report.svg import escape
from snugfit.results.shown import Shown
from snugfit.units import counted, format_seconds


@dataclass(frozen=True, kw_only=True, repr=False)
class Outcome(Shown):
    """The outcome of the runs that have ended, of those that are `planned`; `stop_reason` says why it is not all of them."""

    name: str
    planned: int
    folder: str
    stop_reason: str | None = None

    @property
    @abstractmethod
    def finished(self) -> bool:
        """Return whether nothing is left to run."""

    @abstractmethod
    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""


def render_page(
    outcome: Outcome,
    heading: str,
    kind: str,
    runs: Sequence[float | None],
    sections: Iterable[str],
    footer: str,
    *,
    noun: str,
    status: str | None = None,
    facts: Iterable[str] = (),
) -> str:
    """Return a page as text.

    Args:
        heading: what the work is, above its name; `kind`, the same in the page's title.
        runs: seconds of each run that has ended, where they are known.
        noun: what one of the runs is called.
        status: finished, stopped or failed; whether all have ended by default.
        facts: what else is said above the sections, beside how many of them have ended.
    """
    status = status or ("finished" if outcome.finished else "stopped")
    seconds = format_seconds(sum(each or 0.0 for each in runs))
    identity = "".join(f"<span>{each}</span>" for each in (*facts, seconds))
    stopped = f"<p>Not finished: {escape(outcome.stop_reason)}.</p>" if outcome.stop_reason else ""
    header = (
        f"<header><p class=about>{heading}</p><h1>{escape(outcome.name)}</h1><p class=identity>"
        f'<span class="status {status}">{len(runs)} of {counted(outcome.planned, noun)}</span>{identity}</p>{stopped}</header>'
    )
    body = (header, *sections, f"<footer>Made by Snugfit. {footer}</footer>")
    return document(f"{outcome.name} · {kind} · Snugfit", body, ".note{margin:12px 0}")
