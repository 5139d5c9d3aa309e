"""Memory over an update as areas on top of each other, one for each kind of bytes, against the budget."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate

from snugfit.planner.answers.answer import Answer, Band, Timeline
from snugfit.planner.answers.plan_figures import KINDS, brief_bytes, brief_seconds, peak_place, printable
from snugfit.report.charts import BYTES
from snugfit.report.series import nice_ticks
from snugfit.report.svg import GRID, Axis, escape, horizontal
from snugfit.units import format_bytes

COLUMNS = 600
BUDGET_IN_VIEW = 3.0  # times what is needed; a budget beyond that would press everything else flat
AIR = 1.1  # over the highest line, for its name
SHADES = 5  # of segments
MOST_BORDERS = 16
WIDE, NARROW = 1000, 300  # pixels that a plot has on a desktop and on a phone, at least
LETTER = 7  # pixels

TONES = dict(zip(KINDS, (1, 2, 4, 7, 3, 5, 6, 8), strict=True))
_FROM_BELOW = (
    "weights",
    "optimizer",
    "averages",
    "inputs",
    "gradients",
    "activations",
    "temporaries",
    "workspace",
)  # what stays lies under what comes and goes

STACK_STYLE = (
    "".join(
        f".plot .fill{number}{{fill:color-mix(in srgb,var(--tone{number}) 72%,var(--paper));stroke:none}}\n"
        f".bars .bar .fill{number},.key.fill{number}{{background:color-mix(in srgb,var(--tone{number}) 72%,var(--paper))}}\n"
        for number in range(1, 9)
    )
    + "".join(
        f".plot .shade{number},.key.shade{number}{{fill:color-mix(in srgb,var(--ink) {share}%,var(--paper));"
        f"background:color-mix(in srgb,var(--ink) {share}%,var(--paper))}}\n"
        for number, share in enumerate((6, 84, 26, 64, 100))
    )
    + """
figure.step{padding-bottom:0}
.key.area{width:11px;height:11px;border:0;border-radius:2px;vertical-align:-.05em}
.segments .key{box-shadow:inset 0 0 0 1px var(--muted)}
.plot.stack{margin-bottom:66px}
.plot .budget{stroke:var(--bad);stroke-width:1.5px}.plot .reserved{stroke:var(--ink);stroke-width:1px;
stroke-dasharray:4 4}
.plot .border{stroke:var(--ink);opacity:.14}
.plot .said{fill:var(--ink);paint-order:stroke;stroke:var(--paper);stroke-width:4px;stroke-linejoin:round}
.plot .over{fill:var(--bad)}.plot .peak{font-weight:620}
.plot .top{fill:var(--ink);stroke:var(--paper);stroke-width:2px}
.plot .segment{fill:var(--ink);font-size:11px;text-anchor:middle}
.plot .shade1+.segment,.plot .shade3+.segment,.plot .shade4+.segment{fill:var(--paper)}
figure>.segments{margin-top:10px}
@media (max-width:600px){.plot .roomy{display:none}}
"""
)


def stacked(answer: Answer, timeline: Timeline) -> str:
    """Return the figure of a plan, against its budget."""
    prediction = answer.prediction
    need = max(*timeline.totals(), prediction.reserved_bytes)
    in_view = answer.budget_bytes <= BUDGET_IN_VIEW * need
    notes = []
    if not in_view:
        times = answer.budget_bytes / need
        notes.append(
            f"The budget, {brief_bytes(answer.budget_bytes)}, is {times:,.0f} times as high as this plot."
        )
    return _figure(
        timeline,
        place_of_peak(prediction.peak_at, prediction.peak_bytes, timeline),
        max(need, answer.budget_bytes) if in_view else need,
        lambda axis, size, left: _levels(answer, axis, size, left=left, budget=in_view),
        notes,
    )


def layered(timeline: Timeline, where: str, of: str = "an update") -> str:
    """Return the figure of an update, or of what `of` names, without a budget; `where` its highest point is."""
    return _figure(timeline, where, max(timeline.totals()), lambda *_: "", [], of)


def _figure(
    timeline: Timeline,
    where: str,
    top: int,
    levels: Callable[[Axis, float, bool], str],
    notes: Sequence[str],
    of: str = "an update",
) -> str:
    """Return every column of the drawing shows the highest moment in it, so that the peak is there whatever the length."""
    points = timeline.highest(COLUMNS)
    total = timeline.totals()
    peak = max(total)
    unit, size = next((unit for unit in BYTES if top >= unit[1]), BYTES[-1])
    axis = Axis(0.0, max(1.0, top) / size * AIR)
    at = next(column for column, point in enumerate(points) if total[point] == peak)
    segments = timeline.bands()
    drawn = (
        horizontal(axis, 5)
        + _areas(timeline, points, axis, size)
        + _borders(segments)
        + levels(axis, size, at > COLUMNS / 2)
        + _peak((at + 0.5) / COLUMNS, axis.height(peak / size), peak, where)
        + _strip(segments)
        + _time(timeline.seconds[-1] - timeline.seconds[0])
    )
    sentences = [f"Highest at {format_bytes(peak)}, in {where}.", *notes]
    title = f"Memory over {of}"
    summary = f"{title} by kind, highest at {format_bytes(peak)} in {where}."
    return (
        f'<figure class="wide step"><figcaption><h3>{title}</h3>'
        f'<span class="unit">{unit}</span>{_kinds(timeline)}</figcaption>'
        f'<svg class="plot stack" role="img" aria-label="{escape(summary)}"><title>{title}</title>'
        f'{drawn}</svg><div class="note">{"".join(f"<p>{escape(note)}</p>" for note in sentences)}'
        f"{_phases(segments)}</div></figure>"
    )


def place_of_peak(peak_at: Mapping[str, str], peak_bytes: int, timeline: Timeline) -> str:
    """Return the place of the timeline's highest point; where the plan's peak lies outside of an update, both are told."""
    over = timeline.totals()
    peak = max(over)
    if peak >= peak_bytes:
        return peak_place(peak_at)
    segment = timeline.segments[over.index(peak)]
    return f"{segment}; the plan's peak, {format_bytes(peak_bytes)}, is outside of the update: {peak_place(peak_at)}"


def _present(timeline: Timeline) -> list[str]:
    """Return the kinds that ever have bytes, from the lowest area to the highest."""
    order = [*_FROM_BELOW, *sorted(set(timeline.bytes_by_kind) - set(_FROM_BELOW))]
    return [kind for kind in order if any(timeline.bytes_by_kind.get(kind, ()))]


def _areas(timeline: Timeline, points: Sequence[int], axis: Axis, size: float) -> str:
    """Return each area from the bottom up to its upper edge, the highest first, so that the next one covers all but its own part."""
    kinds = _present(timeline)
    edges = [list(accumulate(timeline.bytes_by_kind[kind][point] for kind in kinds)) for point in points]
    paths = ""
    for number, kind in reversed(list(enumerate(kinds))):
        outline = _outline([axis.height(edge[number] / size) for edge in edges])
        paths += f'<path class="fill{TONES.get(kind, 8)}" d="{outline}"><title>{_named(kind)}</title></path>'
    return f'<svg viewBox="0 0 {GRID} {GRID}" preserveAspectRatio="none" width="100%" height="100%">{paths}</svg>'


def _outline(heights: Sequence[float]) -> str:
    """Return a staircase over equal columns, closed at the bottom of the GRID."""
    commands, last = f"M0 {GRID}", ""
    for column, height in enumerate(heights):
        here = f"V{height * GRID:.1f}"
        if here != last:
            commands += (f"H{column * GRID / len(heights):.1f}" if column else "") + here
            last = here
    return f"{commands}H{GRID}V{GRID}Z"


def _borders(segments: Sequence[Band]) -> str:
    if len(segments) > MOST_BORDERS:
        return ""
    return "".join(
        f'<line class="border" x1="{band.start:.2%}" x2="{band.start:.2%}" y1="0" y2="100%"/>'
        for band in segments[1:]
    )


def _levels(answer: Answer, axis: Axis, size: float, *, left: bool, budget: bool) -> str:
    """Return what the device has to have and what it may have, named at opposite ends; the peak is far from the first."""
    prediction = answer.prediction
    lines = [
        (
            "reserved",
            prediction.reserved_bytes,
            "said",
            left,
            f"{brief_bytes(prediction.reserved_bytes)} in all",
        )
    ]
    if budget:
        name = f"budget {brief_bytes(answer.budget_bytes)}"
        lines.append(("budget", answer.budget_bytes, "said over", not left, name))
    drawn = ""
    for style, count, words, at_left, name in lines:
        y = f"{axis.height(count / size):.2%}"
        x, end = ("0", "") if at_left else ("100%", " end")
        drawn += (
            f'<line class="{style}" x1="0" x2="100%" y1="{y}" y2="{y}"/>'
            f'<text class="{words}{end}" x="{x}" y="{y}" dy="-5">{escape(name)}</text>'
        )
    return drawn


def _peak(x: float, height: float, count: int, where: str) -> str:
    side = 'class="said peak end" dx="-9"' if x > 0.5 else 'class="said peak" dx="9"'
    return (
        f'<circle class="top" cx="{x:.2%}" cy="{height:.3%}" r="4.5"><title>{escape(where)}</title></circle>'
        f'<text {side} x="{x:.2%}" y="{height:.2%}" dy="4">{format_bytes(count)}</text>'
    )


def _strip(segments: Sequence[Band]) -> str:
    """Return the segments below the axis, named where there is room for the name."""
    shades = _shades(segments)
    drawn = ""
    for band in segments:
        width, room = band.end - band.start, len(band.name) * LETTER + 6
        drawn += (
            f'<rect class="shade{shades[_phase(band.name)]}" x="{band.start:.2%}" width="{width:.2%}" height="18">'
            f"<title>{_named(band.name)}</title></rect>"
        )
        if room <= width * WIDE:
            roomy = " roomy" if room > width * NARROW else ""
            middle = band.start + width / 2
            drawn += f'<text class="segment{roomy}" x="{middle:.2%}" y="13">{_named(band.name)}</text>'
    return f'<svg y="100%" width="100%" height="18">{drawn}</svg>'


def _time(seconds: float) -> str:
    """Return the axis of time under the strip of segments; none where no time passes."""
    if seconds <= 0:
        return ""
    drawn = ""
    for tick in nice_ticks(0.0, seconds, 4):
        place = tick / seconds
        style = "x end" if place > 0.97 else "x"
        drawn += f'<text class="{style}" x="{place:.2%}" y="100%" dy="35">{brief_seconds(tick) if tick else "0"}</text>'
    return f'{drawn}<text class="x end" x="100%" y="100%" dy="52">time in the update</text>'


def _kinds(timeline: Timeline) -> str:
    keys = "".join(
        f'<li><i class="key area fill{TONES.get(kind, 8)}"></i>{_named(kind)}</li>'
        for kind in _present(timeline)
    )
    return f'<ul class="legend">{keys}</ul>'


def _phases(segments: Sequence[Band]) -> str:
    keys = "".join(
        f'<li><i class="key area shade{shade}"></i>{_named(phase)}</li>'
        for phase, shade in _shades(segments).items()
    )
    return f'<ul class="legend segments">{keys}</ul>'


def _named(name: str) -> str:
    """Return a user's name inside the drawing, which is XML, where control characters have no place."""
    return escape(printable(name))


def _phase(segment: str) -> str:
    """Return the segment without the number of its micro-batch.

    >>> _phase("backward 2"), _phase("optimizer")
    ('backward', 'optimizer')
    """
    name, _, number = segment.rpartition(" ")
    return name if name and number.isdigit() else segment


def _shades(segments: Sequence[Band]) -> dict[str, int]:
    phases = dict.fromkeys(_phase(band.name) for band in segments)
    return {phase: number % SHADES for number, phase in enumerate(phases)}
