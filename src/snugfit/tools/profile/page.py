"""A profile as one self-contained page: what limits, where the time goes, what to try; and the memory where it was looked at."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from snugfit.planner.answers.plan_figures import brief_number, brief_seconds, digits, printable, share
from snugfit.report.html import breakable, details, figures, table
from snugfit.report.memory_page import MEMORY_STYLE, memory_sections, piece_words
from snugfit.report.page import document, replace_page
from snugfit.report.svg import escape
from snugfit.tools.profile.result import Profile
from snugfit.units import counted

NAME = "profile.html"

_TONES = {
    "data": 2,
    "forward": 1,
    "loss": 7,
    "backward": 4,
    "optimizer": 3,
    "techniques": 5,
    "adjust": 6,
    "unscale": 6,
}
_LIMITS = {"data": 2, "launch": 6, "memory": 1, "compute": 3}

PROFILE_STYLE = (
    MEMORY_STYLE
    + """
.advice small{display:block}
.advice td:first-child,.advice th:first-child{width:6em}
.whole{display:flex;height:26px;border-radius:3px;overflow:hidden;gap:1px;margin-bottom:12px}
.whole span{min-width:1px}
"""
    + "".join(
        f".whole .fill{number}{{background:color-mix(in srgb,var(--tone{number}) 72%,var(--paper))}}\n"
        for number in range(1, 9)
    )
)


def write_profile_page(profile: Profile, path: Path) -> Path:
    """Write the profile's page to `path`, replacing an older one at once, and return it.

    Raises:
        RunFolderError: it cannot be written.
    """
    return replace_page(path, render_profile(profile))


def render_profile(profile: Profile) -> str:
    """Return the page as text."""
    body = (
        _header(profile),
        _phases(profile),
        _culprits(profile),
        _advice(profile),
        *(memory_sections(profile.memory) if profile.memory else []),
        _operators(profile),
        _footer(profile),
    )
    return document(f"{printable(profile.name)} · profile · Snugfit", body, PROFILE_STYLE)


def _header(profile: Profile) -> str:
    device = profile.device
    about = f"Profile · {printable(device['name'])}"
    memory = f"<p>Memory: {breakable(piece_words(profile.memory[0]))}</p>" if profile.memory else ""
    return (
        f"<header><p class=about>{escape(about)}</p><h1>{escape(printable(profile.name))}</h1>"
        f'<p class=identity><span class="status stopped">Limited by {escape(profile.limit)}</span>'
        f"<span>{counted(profile.updates, 'update')} of {counted(profile.rows, 'example')}, in micro-batches of {profile.micro_batch:,}</span></p>"
        f"<p>{breakable(profile.verdict)}</p>{memory}{_figures(profile)}</header>"
    )


def _figures(profile: Profile) -> str:
    device = profile.device
    peak = "measured peak" if device["calibrated"] else "peak by its data sheet, not measured"
    rows = [
        ("An update", brief_seconds(profile.seconds_per_update), "without the profiler"),
        ("Throughput", digits(profile.examples_per_second), "examples/s"),
        ("Work", brief_number(profile.flops_per_update, "FLOP"), "an update"),
        ("Of the device’s peak", share(profile.share_of_peak), peak),
    ]
    rows += [
        (name.capitalize(), brief_seconds(each.seconds), f"each {each.every:,} updates")
        for name, each in profile.occasional.items()
    ]
    return figures(rows)


def _phases(profile: Profile) -> str:
    """Return two bars that are whole: an update by what limits it, and by phase with each one's own bar."""
    limits = [(name, seconds, _LIMITS[name]) for name, seconds in profile.limits.items() if seconds > 0]
    phases = [(name, seconds, _TONES.get(name, 8)) for name, seconds in profile.phases.items()]
    largest = max(seconds for _, seconds, _ in phases)
    rows = "".join(
        f"<tr><th scope=row>{escape(name)}</th>"
        f'<td class=bar><span class=fill{tone} style="width:{seconds / largest:.1%}"></span></td>'
        f"<td class=number>{brief_seconds(seconds)}</td>"
        f"<td class=number>{share(seconds / profile.seconds_per_update)}</td></tr>"
        for name, seconds, tone in phases
    )
    return (
        f"<section><h2>An update</h2><h3>By what limits it</h3>{_whole(limits, profile.seconds_per_update)}"
        f'<h3>By phase</h3><table class="bars"><tbody>{rows}</tbody></table></section>'
    )


def _whole(parts: Iterable[tuple[str, float, int]], whole: float) -> str:
    parts = list(parts)
    bars = "".join(
        f'<span class=fill{tone} style="width:{seconds / whole:.2%}" title="{escape(name)}"></span>'
        for name, seconds, tone in parts
    )
    keys = "".join(
        f'<li><i class="key area fill{tone}"></i>{escape(name)} {share(seconds / whole)}</li>'
        for name, seconds, tone in parts
    )
    return f'<div class=whole>{bars}</div><ul class="legend bars"><li class=bar hidden></li>{keys}</ul>'


def _culprits(profile: Profile) -> str:
    rows = [
        (
            brief_seconds(each.seconds),
            share(each.share),
            printable(each.name),
            each.limit,
            each.phase,
            printable(each.module),
        )
        for each in profile.culprits
    ]
    head = ("of an update", "of the run", "culprit", "limit", "phase", "module")
    return f"<section><h2>The culprits</h2>{table(head, rows, 2)}</section>"


def _advice(profile: Profile) -> str:
    rows = "".join(
        f"<tr><td class=number>{each.gain:.2f}×</td><td>{escape(each.change)}<small>{escape(each.by)}</small></td></tr>"
        for each in profile.advice
    )
    head = "<thead><tr><th class=number>at most</th><th>try</th></tr></thead>"
    body = (
        f"<table class=advice>{head}<tbody>{rows}</tbody></table>"
        if rows
        else "<p>Nothing that is worth it.</p>"
    )
    return f"<section><h2>What to try</h2>{body}</section>"


def _operators(profile: Profile) -> str:
    listed = profile.listed
    shapes, lines = any(each.shapes for each in listed), any(each.line for each in listed)
    host = profile.by_host
    rows = [
        (
            *([brief_seconds(each.host_seconds)] if host else []),
            brief_seconds(each.seconds),
            share(each.seconds / profile.seconds_per_update),
            digits(each.calls),
            brief_number(each.work.flops, "FLOP") if each.work.flops else "",
            each.name,
            each.phase,
            f"{printable(each.module)} ({share(each.module_share)})" if each.module else "",
            *([each.shapes] if shapes else []),
            *([printable(each.line)] if lines else []),
        )
        for each in listed
    ]
    head = (
        *(["on the host"] if host else []),
        *("own time", "share", "calls", "work", "operator", "most in", "module"),
        *(["mostly of shapes"] if shapes else []),
        *(["mostly from"] if lines else []),
    )
    averages = details("torch’s table of key averages", f"<pre tabindex=0>{escape(profile.table)}</pre>")
    return f"<section><h2>Operators</h2>{table(head, rows, 5 if host else 4)}</section><section>{averages}</section>"


def _footer(profile: Profile) -> str:
    notes = "".join(f"<p>{breakable(printable(note))}</p>" for note in profile.notes)
    return (
        f"<footer><p>Seconds by phase are measured without torch’s profiler, which made updates {profile.slowdown:.2f} times as "
        "long; operators have the shares of their phase that it saw. Gains are predicted. The trace is trace.json: open it in "
        f"ui.perfetto.dev or chrome://tracing.</p>{notes}</footer>"
    )
