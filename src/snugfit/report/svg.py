"""Line charts as inline SVG that keeps its type size at any width.

Everything is placed in percent of the plot; only the curves live in a nested `<svg>` that stretches, with
strokes that do not. So one drawing serves a phone and a desktop, without scripts.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from snugfit.report.series import (
    Point,
    decimate,
    format_number,
    is_plottable,
    nice_ticks,
    padded,
    robust_range,
    smooth,
    tick_labels,
)
from snugfit.system.redaction import redact
from snugfit.units import counted

GRID = 1000  # the nested drawing's own units in each direction
MOST_DOTS = 60
FEWEST_TO_SMOOTH = 20


def escape(text: object) -> str:
    """Return text for HTML, without secrets: a page is passed on."""
    return html.escape(redact(str(text)))


@dataclass(frozen=True)
class Dot:
    """A point that shows its reading when the pointer rests on it; `best` gets a ring."""

    x: float
    y: float
    title: str
    best: bool = False


@dataclass(frozen=True)
class Series:
    """A curve of a chart.

    `tone` picks the colour (1 to 8); a `noisy` one is drawn faintly, under its average; a `faint` one faintly
    alone. Of many `dots` only the best ones are drawn, but for a `scattered` one.
    """

    name: str
    points: Sequence[Point]
    tone: int = 1
    dots: Sequence[Dot] = ()
    noisy: bool = False
    faint: bool = False
    scattered: bool = False


@dataclass(frozen=True)
class Mark:
    """Something that happened at an update: kind is "skipped", "warning" or "resume"."""

    x: float
    kind: str
    title: str


@dataclass(frozen=True)
class Chart:
    """A titled plot of one or more series; `limits` are those of its values, where they are not to be found from them."""

    title: str
    unit: str
    series: Sequence[Series]
    from_zero: bool = False
    wide: bool = False
    limits: tuple[float, float] | None = None


@dataclass(frozen=True)
class Frame:
    """The frame that the charts of a page share: the axis of updates from 0 to `end`, the marks, how finely to draw."""

    end: float
    marks: Sequence[Mark] = ()
    x_name: str = "update"
    columns: int = 480
    noun: str = "update"

    def x(self, value: float) -> float:
        """0 at the left of the plot, 1 at the right."""
        return value / self.end

    def ticks(self) -> tuple[list[float], list[str]]:
        """Return where the axis has labels, and which."""
        count = 5 if self.end < 1e4 else 4 if self.end < 1e5 else 3  # the longer the labels, the fewer
        ticks = nice_ticks(0.0, self.end, count, whole=True)
        return ticks, tick_labels(ticks)

    def place(self, value: float) -> str:
        """Return a place on the axis in words."""
        return f"{self.noun} {value:,.0f}"


@dataclass(frozen=True)
class RangeFrame(Frame):
    """An axis from `start`, which need not be 0, to `end`."""

    start: float = 0.0

    def x(self, value: float) -> float:
        return (value - self.start) / (self.end - self.start)

    def ticks(self) -> tuple[list[float], list[str]]:
        ticks = nice_ticks(self.start, self.end, 5)
        return ticks, tick_labels(ticks)

    def place(self, value: float) -> str:
        return f"{self.noun} {format_number(value)}"


@dataclass(frozen=True)
class LogFrame(Frame):
    """An axis from `start` to `end` on which equal factors are equally wide; labels are powers of `base`."""

    start: float = 1.0
    base: int = 10

    def x(self, value: float) -> float:
        return math.log(value / self.start) / math.log(self.end / self.start)

    def ticks(self) -> tuple[list[float], list[str]]:
        first = math.ceil(math.log(self.start, self.base) - 1e-9)
        last = math.floor(math.log(self.end, self.base) + 1e-9)
        ticks = [float(self.base) ** power for power in range(first, last + 1)]
        return ticks, [format_number(tick) for tick in ticks]

    def place(self, value: float) -> str:
        return f"{self.noun} {format_number(value)}"


@dataclass(frozen=True)
class Axis:
    """The vertical range of a plot."""

    low: float
    high: float

    def height(self, value: float) -> float:
        """0 at the top of the plot, 1 at the bottom."""
        return (self.high - value) / (self.high - self.low)


def figure(chart: Chart, frame: Frame, *, first: bool = True) -> str:
    """Return the chart with its heading, legend and notes as a `<figure>`.

    Args:
        first: spell out the marks; the other charts of a page refer to those.
    """
    axis = _axis(chart)
    marks = _marks(frame) if first else '<use href="#marks"/>'
    body = "".join(_layers(series, axis, frame) for series in chart.series)
    notes = "".join(f"<p>{escape(note)}</p>" for note in _notes(chart, axis, frame))
    title = f'aria-label="{escape(_summary(chart, frame))}"><title>{escape(chart.title)}</title>'
    return (
        f"<figure{' class=wide' if chart.wide else ''}><figcaption><h3>{escape(chart.title)}</h3>"
        f"<span class=unit>{escape(chart.unit)}</span>{_legend(chart)}</figcaption>"
        f"<svg class=plot role=img {title}{horizontal(axis, 5 if chart.wide else 4)}{_vertical(frame)}"
        f"{marks}{body}</svg><div class=note>{notes}</div></figure>"
    )


def _axis(chart: Chart) -> Axis:
    if chart.limits is not None:
        return Axis(*padded(*chart.limits, from_zero=chart.from_zero))
    ranges = [
        robust_range([y for _, y in series.points] + [dot.y for dot in series.dots])
        for series in chart.series
    ]
    plotted = [ends for ends in ranges if ends is not None] or [(0.0, 1.0)]
    low, high = min(low for low, _ in plotted), max(high for _, high in plotted)
    return Axis(*padded(low, high, from_zero=chart.from_zero))


def horizontal(axis: Axis, count: int) -> str:
    """About `count` lines across the plot with their values."""
    ticks = nice_ticks(axis.low, axis.high, count)
    return "".join(
        f'<line class="rule" x1="0" x2="100%" y1="{axis.height(tick):.2%}" y2="{axis.height(tick):.2%}"/>'
        f'<text class="y" x="-8" y="{axis.height(tick):.2%}" dy="4">{label}</text>'
        for tick, label in zip(ticks, tick_labels(ticks), strict=True)
    )


def _vertical(frame: Frame) -> str:
    labels = ""
    for tick, label in zip(*frame.ticks(), strict=True):
        # a label at the very end is set flush with it, or a phone would scroll sideways for it
        style = "x end" if frame.x(tick) > 0.99 else "x"
        labels += f'<text class="{style}" x="{frame.x(tick):.2%}" y="100%" dy="18">{label}</text>'
    return (
        f'<line class=base x1="0" x2="100%" y1="100%" y2="100%"/>{labels}'
        f'<text class="x end" x="100%" y="100%" dy="34">{escape(frame.x_name)}</text>'
    )


def _marks(frame: Frame) -> str:
    ends = {"resume": ("0", "100%"), "skipped": ("95%", "100%"), "warning": ("0", "5%")}
    drawn = []
    for mark in frame.marks:
        top, bottom = ends[mark.kind]
        place = f"{frame.x(mark.x):.2%}"
        drawn.append(
            f'<line class="mark {mark.kind}" x1="{place}" x2="{place}" y1="{top}" y2="{bottom}">'
            f"<title>{escape(mark.title)}</title></line>"
        )
    return f"<g id=marks>{''.join(drawn)}</g>"


def _layers(series: Series, axis: Axis, frame: Frame) -> str:
    curves = [("faint" if series.faint or is_smoothed(series) else "curve", series.points)]
    if is_smoothed(series):
        # what lies beyond the axis would lift the average for long after
        inside = [(x, y if axis.low <= y <= axis.high else math.nan) for x, y in series.points]
        curves.append(("curve", smooth(inside, smoothing_reach(len(inside)))))
    paths = "".join(
        f'<path class="{style} tone{series.tone}" d="{path(decimate(points, frame.columns), axis, frame)}"/>'
        for style, points in curves
    )
    stretched = f'viewBox="0 0 {GRID} {GRID}" preserveAspectRatio="none" width="100%" height="100%"'
    return f"<svg {stretched}>{paths}</svg>" + "".join(
        _dot(dot, series.tone, axis, frame) for dot in _dots(series)
    )


def _dot(dot: Dot, tone: int, axis: Axis, frame: Frame) -> str:
    if not is_plottable(dot.y):
        return ""
    place = f'cx="{frame.x(dot.x):.2%}" cy="{axis.height(dot.y):.2%}"'
    ring = f'<circle class="ring tone{tone}" {place} r="7"/>' if dot.best else ""
    return f'{ring}<circle class="dot tone{tone}" {place} r="3.5"><title>{escape(dot.title)}</title></circle>'


def _dots(series: Series) -> Iterable[Dot]:
    if not series.dots:
        lonely = [point for point in series.points if is_plottable(point[1])]
        return [Dot(x, y, f"{series.name} {format_number(y)}") for x, y in lonely] if len(lonely) == 1 else []
    if series.scattered or len(series.dots) <= MOST_DOTS:
        return series.dots
    return [dot for dot in series.dots if dot.best]


def path(points: Iterable[Point], axis: Axis, frame: Frame) -> str:
    """Return the curve's commands on the GRID; a value that has no place breaks it, a lonely one becomes a dot."""
    runs: list[list[str]] = [[]]
    for x, y in points:
        if not is_plottable(y):
            runs.append([])
            continue
        height = min(max(axis.height(y), -1.0), 2.0)  # far outside, only the direction matters
        place = f"{frame.x(x) * GRID:.0f} {height * GRID:.0f}"
        if not runs[-1] or runs[-1][-1] != place:
            runs[-1].append(place)
    return "".join(f"M{'L'.join(run)}" + ("h0" if len(run) == 1 else "") for run in runs if run)


def is_smoothed(series: Series) -> bool:
    """Return whether the series gets an average drawn over it: it is noisy and long enough."""
    return series.noisy and len(series.points) >= FEWEST_TO_SMOOTH


def smoothing_reach(count: int) -> float:
    """Points over which the average forgets: a hundredth of the run, at least two points."""
    return max(2.0, count / 100)


def _legend(chart: Chart) -> str:
    is_named = len(chart.series) > 1
    smoothed = [series for series in chart.series if is_smoothed(series)]
    keys = [(f"faint tone{series.tone}", "each update") for series in smoothed[:1]]
    for series in chart.series:
        words = [series.name] * is_named + ["smoothed"] * is_smoothed(series)
        if words:
            keys.append((f"{'faint ' * series.faint}tone{series.tone}", ", ".join(words)))
    entries = "".join(f'<li><i class="key {style}"></i>{escape(text)}</li>' for style, text in keys)
    return f"<ul class=legend>{entries}</ul>" if entries else ""


def _summary(chart: Chart, frame: Frame) -> str:
    readings = []
    for series in chart.series:
        values = [y for _, y in series.points if is_plottable(y)]
        if values:
            readings.append(
                f"{series.name}: first {format_number(values[0])}, last {format_number(values[-1])}, "
                f"lowest {format_number(min(values))}, highest {format_number(max(values))}"
            )
    return f"{chart.title} by {frame.noun}. " + ("; ".join(readings) or "no values") + "."


def _notes(chart: Chart, axis: Axis, frame: Frame) -> list[str]:
    notes = []
    for series in chart.series:
        values = [(y, x) for x, y in series.points if is_plottable(y)]
        name = series.name.capitalize()
        gaps = len(series.points) - len(values)
        if gaps:
            notes.append(f"{name}: {counted(gaps, 'value')} not finite, left out.")
        for beyond, extreme, word in (
            ([pair for pair in values if pair[0] > axis.high], max, "above"),
            ([pair for pair in values if pair[0] < axis.low], min, "below"),
        ):
            if beyond:
                value, x = extreme(beyond)
                count = f"{len(beyond):,} values" if len(beyond) > 1 else "1 value"
                furthest = f"{format_number(value)} at {frame.place(x)}"
                notes.append(f"{name}: {count} {word} the axis, the furthest {furthest}.")
    return notes
