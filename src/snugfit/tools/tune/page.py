"""A search over settings as one self-contained page: the value of every trial, over the trials and over each setting."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from snugfit.report.html import aligned, figures, table
from snugfit.report.series import as_number, format_number, nice_ticks, robust_range, tick_labels
from snugfit.report.svg import Chart, Dot, Frame, LogFrame, Series, escape, figure
from snugfit.tools.many_runs.outcome import render_page
from snugfit.tools.tune.result import Choices, Parameter, Trial, Tuned, shown
from snugfit.units import counted, format_seconds

LONGEST_LABEL = 16
MOST_ROWS = 200
_TONES = {"finished": 1, "pruned": 8, "failed": 6}


def render_tune_page(result: Tuned) -> str:
    """Return the page as text."""
    return render_page(
        result,
        "Search for settings",
        "search",
        [each.seconds for each in result.trials],
        [_best(result), _drawn(result), _trials(result)],
        "Values are drawn by Optuna’s TPE (Bergstra et al. 2011). Which trial is the best is decided on the rows "
        "that score them, so its value is somewhat too good: score its model on rows that no trial has seen.",
        noun="trial",
        status="failed" if result.finished and not result.best else None,
        facts=[f"{count} {state}" for state, count in result.counts().items() if count],
    )


def _best(result: Tuned) -> str:
    best = result.best
    if best is None or best.value is None:
        return "<section><p>No trial is finished yet.</p></section>"
    settings = [(name, _written(best.parameters[name]), "") for name in result.space]
    value = (result.metric, format_number(best.value), f" trial {best.number}")
    return f"<section><h2>The best finished trial</h2>{figures([value, *settings])}</section>"


def _drawn(result: Tuned) -> str:
    limits = _limits(result)
    if len(result.trials) < 2 or limits is None:
        return ""
    count = len(result.trials)
    frame = Frame(end=count + 0.5, x_name="trial", noun="trial")
    best = Series("best so far", _steps(result), tone=2)
    series = [best, *_scattered(result, limits, lambda trial: trial.number)]
    over_trials = figure(Chart(result.metric, "", series, wide=True, limits=limits), frame)
    over_settings = "".join(
        figure(
            Chart(
                name,
                result.metric,
                list(_scattered(result, limits, _place(name, parameter))),
                limits=limits,
            ),
            _frame(name, parameter),
            first=False,
        )
        for name, parameter in result.space.items()
    )
    return (
        f"<section><h2>Every trial</h2><div class=charts>{over_trials}</div></section>"
        f"<section><h2>Each setting</h2><p class=note>One setting at a time, whatever the others were. Those that failed without a value "
        f"are at the edge.</p><div class=charts>{over_settings}</div></section>"
    )


def _steps(result: Tuned) -> list[tuple[float, float]]:
    """Return the best value so far, which jumps where there is a better one."""
    points: list[tuple[float, float]] = []
    for number, value in enumerate(result.best_so_far(), 1):
        if value is None:
            continue
        if points:
            points.append((float(number), points[-1][1]))
        points.append((float(number), value))
    return points


def _limits(result: Tuned) -> tuple[float, float] | None:
    """Return limits of the values that are drawn: a few that are far off lie at the edge."""
    values = [value for trial in result.trials if (value := as_number(trial.value)) is not None]
    span = robust_range(values)
    if span is None:
        return None
    low, high = span
    return (low, high) if low < high else (low - 0.5, high + 0.5)


def _scattered(
    result: Tuned, limits: tuple[float, float], place: Callable[[Trial], float]
) -> Iterator[Series]:
    """Yield the trials of each end as dots."""
    low, high = limits
    worst = low if result.higher else high
    for state, tone in _TONES.items():
        dots = [
            Dot(
                place(trial),
                worst if trial.value is None else min(max(trial.value, low), high),
                f"trial {trial.number}, {state}: {_value(trial)}",
                trial is result.best,
            )
            for trial in result.trials
            if trial.state == state
        ]
        if dots:
            yield Series(state, [], tone=tone, dots=dots, scattered=True)


def _value(trial: Trial) -> str:
    return "no value" if trial.value is None else format_number(trial.value)


@dataclass(frozen=True)
class _SpanFrame(Frame):
    """An axis from `start` to `end`."""

    start: float = 0.0
    whole: bool = False

    def x(self, value: float) -> float:
        return (value - self.start) / (self.end - self.start)

    def ticks(self) -> tuple[list[float], list[str]]:
        ticks = nice_ticks(self.start, self.end, 4, whole=self.whole)
        return ticks, tick_labels(ticks)


@dataclass(frozen=True)
class _FactorFrame(LogFrame):
    """An axis of factors; one that is too short for two powers has its ends for labels."""

    def ticks(self) -> tuple[list[float], list[str]]:
        ticks, labels = super().ticks()
        ends = [self.start, self.end]
        return (ticks, labels) if len(ticks) > 1 else (ends, [format_number(end) for end in ends])


@dataclass(frozen=True)
class _NamedFrame(Frame):
    """An axis with a place for each of `names`."""

    names: tuple[str, ...] = ()

    def x(self, value: float) -> float:
        return (value + 0.5) / len(self.names)

    def ticks(self) -> tuple[list[float], list[str]]:
        return [float(place) for place in range(len(self.names))], [escape(_cut(name)) for name in self.names]


def _frame(name: str, parameter: Parameter) -> Frame:
    last = name.rpartition(".")[2]
    if isinstance(parameter, Choices):
        names = tuple(_written(value) for value in parameter.values)
        return _NamedFrame(end=len(names), x_name=last, noun=last, names=names)
    low, high = float(parameter.low), float(parameter.high)
    if parameter.log:
        return _FactorFrame(end=high, start=low, x_name=last, noun=last)
    return _SpanFrame(end=high, start=low, x_name=last, noun=last, whole=parameter.whole)


def _place(name: str, parameter: Parameter) -> Callable[[Trial], float]:
    if isinstance(parameter, Choices):
        places = {text: float(place) for place, text in enumerate(parameter.texts())}
        return lambda trial: places[Choices((trial.parameters[name],)).written()]
    return lambda trial: float(trial.parameters[name])


def _trials(result: Tuned) -> str:
    ranked = result.ranked()[:MOST_ROWS]
    if not ranked:
        return ""
    values = aligned([each.value for each in ranked], 4)
    names = list(result.space)
    rows = [
        [
            value,
            str(trial.number),
            *(_written(trial.parameters[name]) for name in names),
            str(len(trial.evaluations)),
            "" if trial.seconds is None else format_seconds(trial.seconds),
            trial.state,
            "" if trial.run_dir is None else Path(trial.run_dir).name,
            trial.reason or "",
        ]
        for value, trial in zip(values, ranked, strict=True)
    ]
    head = [result.metric, "trial", *_headings(names), "evaluations", "time", "end", "run", "why"]
    left = len(result.trials) - len(ranked)
    more = f"<p class=note>{counted(left, 'more trial')} in found.json.</p>" if left else ""
    return f"<section><h2>The trials</h2>{table(head, rows, numbers=4 + len(names))}{more}</section>"


def _headings(names: list[str]) -> list[str]:
    """Return the last part of each name, or all of it where two have the same."""
    last = [name.rpartition(".")[2] for name in names]
    return [short if last.count(short) == 1 else name for name, short in zip(names, last, strict=True)]


def _written(value: object) -> str:
    if isinstance(value, float):
        return format_number(value)
    return shown(value)


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_LABEL else f"{text[: LONGEST_LABEL - 1]}…"
