"""The charts of a run: loss, the metrics of its evaluations, then whatever its updates measured."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from snugfit.data.report import has_epochs
from snugfit.kit.metric_directions import OF_CLASS, is_of_class
from snugfit.report.series import Point, as_number, format_number
from snugfit.report.story import Story, mapping, marks
from snugfit.report.svg import Chart, Dot, Frame, Series
from snugfit.tracking.spool import Event

MOST_CURVES = 8  # in one chart; there are as many tones
COLUMNS_IN_A_PAGE = 16_000  # over all curves; one takes up to 32 bytes, and a page stays under 1 MB

# update metrics that have a chart of their own, in the order of the page: title, unit, from zero, noisy
KNOWN = {
    "learning_rate": ("Learning rate", "", True, False),
    "gradient_norm": ("Gradient norm", "global L2", True, True),
    "examples_per_second": ("Throughput", "examples per second", True, True),
    "memory_bytes": ("Memory", "", True, False),
}
BYTES = (("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10), ("bytes", 1.0))


def charts(story: Story) -> list[Chart]:
    """Return all charts that have values to show, the loss first; a metric of one evaluation alone is no curve."""
    loss, *metrics = [_loss(story), *_evaluated(story)]
    return [chart for chart in (loss, *metrics, *_measured(story)) if any(s.points for s in chart.series)]


def frame(story: Story, drawn: Sequence[Chart]) -> Frame:
    """Return the axis of updates that the charts share, and as many columns as the size of the page allows."""
    curves = sum(1 + series.noisy for chart in drawn for series in chart.series) or 1
    end = float(max(story.last_update, 1))
    data = mapping(story.run.get("data"))
    every = as_number(story.run.get("updates_per_epoch")) if has_epochs(data) else None
    return Frame(
        end=end,
        marks=marks(story.incidents, end),
        x_name=f"update ({every:,.0f} an epoch)" if every else "update",
        columns=min(480, max(40, COLUMNS_IN_A_PAGE // curves)),
    )


def curve(events: Sequence[Event], metric: str) -> list[Point]:
    """(update, value) of each event with the metric; a value that is not finite is NaN, drawn as a gap."""
    points = []
    for event in events:
        update, metrics = as_number(event.get("update")), mapping(event.get("metrics"))
        if update is not None and metric in metrics:
            value = as_number(metrics[metric])
            points.append((update, math.nan if value is None else value))
    return points


def _loss(story: Story) -> Chart:
    training = Series("training", curve(story.updates, "loss"), tone=1, noisy=True)
    validation = list(_by_weights(story, "loss", "validation", first_tone=2))
    return Chart("Loss", "", [training, *validation], wide=True)


def _evaluated(story: Story) -> Iterator[Chart]:
    names = [name for name in _metric_names(story.evaluations) if name != "loss"]
    names.sort(key=lambda name: name != story.monitored)
    for title, members in _grouped(names).items():
        series: list[Series] = []
        for name in members:
            label = name.removeprefix(f"{title}/")
            series += _by_weights(
                story, name, label, first_tone=len(series) + 2 if len(members) == 1 else len(series) + 1
            )
        if any(len(each.points) > 1 for each in series):
            yield Chart(_title(title), _shown_of("validation", series), series[:MOST_CURVES])


def _by_weights(story: Story, metric: str, label: str, first_tone: int) -> Iterator[Series]:
    """Yield one series for each kind of weights that was evaluated: raw, averaged."""
    kinds = list(dict.fromkeys(str(event.get("weights", "raw")) for event in story.evaluations))
    for offset, kind in enumerate(kinds):
        events = [event for event in story.evaluations if str(event.get("weights", "raw")) == kind]
        points = curve(events, metric)
        if points:
            names_weights = len(kinds) > 1 or (metric == "loss" and kind != "raw")
            name = f"{label}, {kind} weights" if names_weights else label
            dots = [dot for event in events for dot in _dots(story, event, metric, name)]
            yield Series(name, points, tone=_tone(first_tone + offset), dots=dots)


def _dots(story: Story, event: Event, metric: str, name: str) -> Iterator[Dot]:
    for update, value in curve([event], metric):
        best = bool(event.get("best")) and story.best is not None and update == story.best[0]
        epoch = as_number(event.get("epoch")) if has_epochs(mapping(story.run.get("data"))) else None
        when = f"update {update:,.0f}" + (f", epoch {format_number(epoch)}" if epoch is not None else "")
        yield Dot(update, value, f"{name} {format_number(value)} at {when}{' (best)' if best else ''}", best)


def _measured(story: Story) -> Iterator[Chart]:
    groups = _grouped(name for name in _metric_names(story.updates) if name != "loss")
    for name in [
        *(known for known in KNOWN if known in groups),
        *(other for other in groups if other not in KNOWN),
    ]:
        title, unit, from_zero, noisy = KNOWN.get(name, (_title(name), "", False, True))
        series = [
            Series(
                member.removeprefix(f"{name}/").replace("_", " "),
                curve(story.updates, member),
                tone=_tone(tone),
                noisy=noisy,
            )
            for tone, member in enumerate(groups[name], 1)
        ]
        if len(series) == 1:
            series = [Series(title.lower(), series[0].points, tone=1, noisy=noisy)]
        if name.endswith("_bytes"):
            unit, series = _in_bytes(series)
        yield Chart(title, _shown_of(unit, series), series[:MOST_CURVES], from_zero=from_zero)


def _in_bytes(series: Sequence[Series]) -> tuple[str, list[Series]]:
    largest = max((y for one in series for _, y in one.points if math.isfinite(y)), default=0.0)
    unit, size = next((unit for unit in BYTES if largest >= unit[1]), BYTES[-1])
    return unit, [Series(one.name, [(x, y / size) for x, y in one.points], one.tone) for one in series]


def _shown_of(unit: str, series: Sequence[Series]) -> str:
    if len(series) <= MOST_CURVES:
        return unit
    return f"{unit}{', ' if unit else ''}the first {MOST_CURVES} of {len(series)}"


def _metric_names(events: Sequence[Event]) -> list[str]:
    return list(dict.fromkeys(str(name) for event in events for name in mapping(event.get("metrics"))))


def _grouped(names: Sequence[str] | Iterator[str]) -> dict[str, list[str]]:
    """'learning_rate/head' belongs to the chart of 'learning_rate', 'F1Score of cat' to that of 'F1Score'."""
    groups: dict[str, list[str]] = {}
    known = dict.fromkeys(names)
    for name in known:
        title = name.partition(OF_CLASS if is_of_class(name, known) else "/")[0]
        groups.setdefault(title, []).append(name)
    return groups


def _title(name: str) -> str:
    text = name.removesuffix("_bytes").replace("_", " ").strip() or name
    return text[:1].upper() + text[1:]


def _tone(number: int) -> int:
    return (number - 1) % MOST_CURVES + 1
