"""Series of a recipe and of files: read, split by time, and made into windows to train on, to score, or to predict from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from snugfit.data.bad_rows import Fault, check_policy, settle
from snugfit.data.examples import Examples
from snugfit.data.files.file_rows import FileRows
from snugfit.data.report import DataReport
from snugfit.data.series.series_windows import (
    SeriesWindows,
    collate,
    naive_error,
    scales_of,
    seasonal_naive,
    steps_of,
)
from snugfit.data.series.time_series import (
    Key,
    LongTable,
    Series,
    SeriesColumns,
    on_grid,
    read_long,
    shown_key,
)
from snugfit.data.series.time_steps import TimeStep, calendar_columns, infer_step, read_frequency
from snugfit.data.sources import RowSource, Table, fingerprints_of, read_table
from snugfit.data.splits.hold_out import SHARES, VALIDATION, HoldOut, check_fraction
from snugfit.data.splits.sides import Validation
from snugfit.errors import DataError, SettingError
from snugfit.units import counted

_HORIZON = 12
"""Steps that are predicted where there is neither a season nor a setting."""
_LEAST_KNOWN = 2
"""Values that a history has at least, so that it has a mean and a spread."""
_SHOWN_SERIES = 100_000
"""Series whose naive errors are saved with a model."""
_SHORT = "short series"
"""The reason of the faults of those that no window fits into."""


@dataclass(frozen=True)
class ForecastSettings:
    """The `data` part of a recipe for forecasts.

    Args:
        horizon: steps to predict; None for a season.
        history: steps before them that the model sees; None for two seasons, or three horizons where those are more; half of what is left where no series is so long.
        season: steps after which a series is much the same; None for the usual one of the frequency.
        frequency: the step between rows; None to infer it.
        stride: steps between the windows that are trained on.
    """

    columns: SeriesColumns
    train: RowSource
    validation: Validation = 0.1
    horizon: int | None = None
    history: int | None = None
    season: int | None = None
    frequency: str | None = None
    stride: int = 1
    quantiles: tuple[float, ...] = (0.1, 0.5, 0.9)
    bad_rows: str = "fail"

    def __post_init__(self) -> None:
        check_policy(self.bad_rows)
        if isinstance(self.validation, HoldOut):
            raise SettingError(
                VALIDATION,
                "holds rows out by a column, and of each series the last steps are held out anyway",
                "Write a fraction, or a file.",
            )
        if isinstance(self.validation, (int, float)):
            check_fraction(self.validation)
        if self.history is not None and self.history < _LEAST_KNOWN:
            raise SettingError(
                "data.history",
                f"got {self.history}, and a model sees the mean and the spread of the steps before those that it predicts",
                f"Give {_LEAST_KNOWN} or more.",
            )
        levels = self.quantiles
        if list(levels) != sorted(set(levels)) or 0.5 not in levels or not 0 < levels[0] <= levels[-1] < 1:
            raise SettingError(
                "data.quantiles",
                f"got {list(levels)}",
                "Write ascending numbers between 0 and 1, with 0.5 among them: [0.1, 0.5, 0.9].",
            )


@dataclass(frozen=True)
class SeriesFormat:
    """The form of series as a model reads them, fitted on the steps to train on.

    Args:
        counted: whether times are whole numbers, and no dates.
        scales: mean and deviation of each covariate.
        errors: of the seasonal naive forecast in the steps to train on, by series.
    """

    columns: SeriesColumns
    step: TimeStep
    counted: bool
    horizon: int
    history: int
    season: int
    quantiles: tuple[float, ...]
    scales: tuple[tuple[float, float], ...]
    errors: Mapping[Key, float]

    @property
    def known(self) -> int:
        """Numbers of each step that are known ahead: columns, and the calendar."""
        calendar = calendar_columns(np.zeros(1, np.int64), self.step)
        return len(self.columns.known) + int(calendar.shape[1])

    @property
    def past(self) -> int:
        """Numbers of each step that are known up to now only."""
        return len(self.columns.past)

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON holds it."""
        errors = [[*key, error] for key, error in self.errors.items() if not math.isnan(error)]
        return {**asdict(self), "errors": errors[:_SHOWN_SERIES]}

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> SeriesFormat:
        """Return the format that `as_dict` gave."""
        return cls(
            **{
                **values,
                "columns": SeriesColumns.of(values["columns"]),
                "step": TimeStep(**values["step"]),
                "quantiles": tuple(values["quantiles"]),
                "scales": tuple(map(tuple, values["scales"])),
                "errors": {tuple(key): error for *key, error in values["errors"]},
            }
        )


@dataclass(frozen=True)
class ForecastData:
    """Windows to train and validate on, and the form of the series; the report's baseline is the seasonal naive forecast.

    `example_rows` are a history of one series, with the steps behind it where something is known of them ahead.
    """

    train: SeriesWindows
    validation: SeriesWindows | None
    format: SeriesFormat
    report: DataReport
    series: int
    fingerprints: Mapping[str, str]
    example_rows: list[dict[str, Any]]


@dataclass(frozen=True)
class _Part:
    """A series of a source, how many of its steps are trained on, and how many a window may lie in."""

    series: Series
    source: str
    end: int
    usable: int


@dataclass
class _Origins:
    """Origins of windows in series one after another, and where each comes from."""

    places: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    units: list[float] = field(default_factory=list)

    def add(self, series: Series, start: int, place: int, unit: float, *, at: int) -> None:
        """Add an origin of a series that begins at `start`; `at` is the step whose row it is shown by."""
        self.places.append(start + place)
        self.rows.append(series.rows[at])
        self.lines.append(series.lines[at])
        self.units.append(unit)

    def windows(
        self,
        source: str,
        steps: Mapping[str, Any],
        form: SeriesFormat,
        ahead: Sequence[Sequence[Mapping[str, Any]]] | None = None,
    ) -> SeriesWindows:
        """Return them as examples, which are scored where nothing is said of the steps ahead."""
        examples = Examples(range(len(self.places)), source, self.rows, self.lines)
        units = self.units if ahead is None else None
        return SeriesWindows(examples, steps, self.places, form.history, form.horizon, units, ahead or ())


@dataclass
class _Naive:
    """Errors of the seasonal naive forecast: of each step, and in units of its series' own."""

    errors: list[float] = field(default_factory=list)
    scaled: list[float] = field(default_factory=list)

    def add(self, series: Series, origins: Sequence[int], form: SeriesFormat, unit: float) -> None:
        """Add those of the windows at these origins of a series."""
        for origin in origins:
            forecast = seasonal_naive(series.values, origin, form.horizon, form.season)
            errors = np.abs(forecast - series.values[origin : origin + form.horizon])
            errors = errors[~np.isnan(errors)]
            self.errors += errors.tolist()
            self.scaled += [] if math.isnan(unit) else (errors / unit).tolist()

    @property
    def scores(self) -> dict[str, float]:
        """Their means, as metrics are called."""
        sums = {"mase": self.scaled, "mae": self.errors}
        return {name: sum(errors) / len(errors) for name, errors in sums.items() if errors}


def load_series(settings: ForecastSettings, *, folder: Path | None = None) -> ForecastData:
    """Read series, set the last steps of each aside, and fit what the model needs on the steps before them.

    A fraction to validate on is that part of each series, in whole horizons and at least one of them, at its end. A file to validate on
    has later rows of the same series, or series of its own.

    Raises:
        DataError: a source cannot be used, rows are faulty and the policy is 'fail', or too little is left.
        SettingError: settings contradict each other.
    """
    columns = settings.columns
    table = read_table(settings.train, setting="data.train", folder=folder)
    columns.check(table)
    long = read_long(table, columns, labelled=True)
    if not any(long.series.values()):
        settle(long.faults, settings.bad_rows)
        raise _nothing_left(table, long.faults)
    held_out = None
    if settings.validation is not None and not isinstance(settings.validation, SHARES):
        later = read_table(settings.validation, setting="data.validation", folder=folder)
        columns.check(later)
        held_out = read_long(later, columns, labelled=True, counted=long.counted)
    step = _step(settings, long)
    season = settings.season or step.season
    horizon = settings.horizon or _usual_horizon(season, long, settings.history)
    every, faults = _parts(settings, long, held_out, step, horizon)
    history = settings.history or _usual_history(season, horizon, every)
    needed = history + horizon
    parts = [part for part in every if part.usable >= needed]
    faults += [
        _short(part.series, columns, part.source, part.usable, "to train on", needed)
        for part in every
        if part.usable < needed
    ]
    skipped = settle(sorted(faults, key=lambda fault: (fault.source, fault.line)), settings.bad_rows)
    if not any(part.end for part in parts):
        raise _nothing_left(table, faults)
    series = [part.series for part in parts]
    scales = scales_of(series, [part.end for part in parts], len(columns.known) + len(columns.past))
    errors = {part.series.key: naive_error(part.series.values[: part.end], season) for part in parts}
    form = SeriesFormat(
        columns, step, long.counted, horizon, history, season, settings.quantiles, tuple(scales), errors
    )
    steps, starts = steps_of(series, len(columns.known), scales, step, horizon)
    train, aside, naive = _Origins(), _Origins(), _Naive()
    for part, start in zip(parts, starts, strict=True):
        values, end, unit = part.series.values, part.end, errors[part.series.key]
        _add(train, part.series, start, _back_from(end - horizon, history, settings.stride), form, unit)
        if settings.validation is None:
            continue
        begin = max(end, history)
        unit = naive_error(values[:begin], season) if math.isnan(unit) else unit
        scored = _add(
            aside, part.series, start, _back_from(len(values) - horizon, begin, horizon), form, unit
        )
        naive.add(part.series, scored, form, unit)
    if not train.places:
        raise _nothing_left(table, faults)
    tables = [table] if held_out is None else [table, held_out.table]
    return ForecastData(
        train=train.windows(table.source, steps, form),
        validation=aside.windows(tables[-1].source, steps, form) if aside.places else None,
        format=form,
        report=DataReport(
            train=len(train.places),
            validation=len(aside.places),
            skipped=skipped,
            warnings=tuple(_gaps(series)),
            unit="windows",
            form=_form(series, form),
            baseline=naive.scores,
        ),
        series=len(series),
        fingerprints=fingerprints_of(tables),
        example_rows=_example_rows(table, parts, form),
    )


def _example_rows(table: Table, parts: Sequence[_Part], form: SeriesFormat) -> list[dict[str, Any]]:
    """Return the rows that are needed to predict what comes after some steps to train on of the longest series."""
    columns = form.columns
    longest = max(parts, key=lambda part: part.end)
    ahead = form.horizon if columns.known else 0
    indices = dict.fromkeys(longest.series.rows[max(0, longest.end - form.history - ahead) : longest.end])
    names = (*columns.series, columns.time, columns.label, *columns.known, *columns.past)
    rows = [{name: table.rows[index].get(name) for name in names} for index in indices]
    for row in rows[form.history :]:
        row[columns.label] = None
    return rows


def load_series_rows(
    source: RowSource, form: SeriesFormat, *, labelled: bool, bad_rows: str, folder: Path | None = None
) -> FileRows:
    """Read one source to evaluate on, or to predict what comes after it.

    To evaluate, every horizon of each series is scored that has a history before it, back from its end. To predict, a window ends at the
    last target of each series; rows behind it have the covariates that are known ahead.

    Raises:
        DataError: as for `load_series`.
    """
    check_policy(bad_rows)
    table = read_table(source, setting="data", folder=folder)
    form.columns.check(table, labelled=labelled)
    if form.columns.label not in table.columns:
        raise DataError(
            "data",
            f"{table.source} has no column '{form.columns.label}' to go on from",
            "Give the history of each series.",
        )
    windows, lines, report = _file_windows(table, form, labelled=labelled, bad_rows=bad_rows)
    return FileRows(
        examples=windows,
        rows=[{} for _ in lines],
        lines=lines,
        columns=(),
        collate=collate,
        report=report,
        fingerprints=table.fingerprints,
    )


def windows_ahead(rows: Sequence[Mapping[str, Any]], form: SeriesFormat) -> SeriesWindows:
    """Return the window of each series of rows that a program gives, of what comes after them.

    Raises:
        DataError: rows cannot be used.
    """
    columns = tuple(dict.fromkeys(name for row in rows for name in row))
    table = Table("the rows", columns, [dict(row) for row in rows], list(range(len(rows))), "")
    form.columns.check(table)
    return _file_windows(table, form, labelled=False, bad_rows="fail")[0]


def _file_windows(
    table: Table, form: SeriesFormat, *, labelled: bool, bad_rows: str
) -> tuple[SeriesWindows, list[int], DataReport]:
    columns = form.columns
    long = read_long(table, columns, labelled=labelled, counted=form.counted)
    faults = list(long.faults)
    series: list[Series] = []
    for key, moments in long.series.items():
        each, off = on_grid(key, moments, form.step, columns)
        faults += off
        fault = _unusable(each, form, table.source, labelled=labelled)
        if fault is None:
            series.append(each)
        else:
            faults.append(fault)
    skipped = settle(sorted(faults, key=lambda fault: fault.line), bad_rows)
    if not series:
        raise _nothing_left(table, faults)
    steps, starts = steps_of(series, len(columns.known), form.scales, form.step, form.horizon)
    origins, naive = _Origins(), _Naive()
    ahead: list[list[dict[str, Any]]] = []
    for each, start in zip(series, starts, strict=True):
        if not labelled:
            origin = each.known_steps
            origins.add(each, start, origin, math.nan, at=origin - 1)
            ahead.append(_steps_ahead(each, origin, form))
            continue
        scored = _back_from(each.known_steps - form.horizon, form.history, form.horizon)
        unit = form.errors.get(each.key, math.nan)
        unit = naive_error(each.values[: scored[0]], form.season) if math.isnan(unit) else unit
        naive.add(each, _add(origins, each, start, scored, form, unit), form, unit)
    windows = origins.windows(table.source, steps, form, None if labelled else ahead)
    report = DataReport(
        train=0,
        validation=len(windows),
        skipped=skipped,
        warnings=tuple(_gaps(series)),
        unit="windows",
        baseline=naive.scores,
    )
    return windows, origins.lines, report


def _parts(
    settings: ForecastSettings,
    long: LongTable,
    held_out: LongTable | None,
    step: TimeStep,
    horizon: int,
) -> tuple[list[_Part], list[Fault]]:
    """Return the series, each with the rows to validate on behind those to train on, and the faults of rows."""
    faults = list(long.faults)
    moments = {key: list(own) for key, own in long.series.items()}
    if held_out is not None:
        faults += [*held_out.faults, *_earlier(long, held_out, settings.columns)]
        for key, later in held_out.series.items():
            moments[key] = [*moments.get(key, ()), *later]
    parts = []
    for key, own in moments.items():
        if not own:
            continue
        trained = long.series.get(key)
        series, off = on_grid(key, own, step, settings.columns)
        faults += off
        end = _end(series, trained[-1].time if trained else None, settings, step, horizon)
        parts.append(_Part(series, own[0].source, end, end if trained else len(series.values)))
    return parts, faults


def _usual_horizon(season: int, long: LongTable, history: int | None) -> int:
    """Return the steps to predict where nobody says how many: a quarter of the longest series where it is too short for more."""
    usual = season if season > 1 else _HORIZON
    longest = max(map(len, long.series.values()))
    return usual if history is not None else max(1, min(usual, longest // 4))


def _usual_history(season: int, horizon: int, parts: Sequence[_Part]) -> int:
    """Return the steps that a window sees where nobody says how many: half of what is there where no series is long enough for more."""
    usual = max(3 * horizon, 2 * season)
    longest = max((part.end for part in parts), default=0)
    return usual if longest >= usual + horizon else max(_LEAST_KNOWN, (longest - horizon) // 2)


def _back_from(last: int, first: int, stride: int) -> list[int]:
    """Return places from the last one back to the first, in ascending order.

    >>> _back_from(10, 3, 3)
    [4, 7, 10]
    """
    return [*reversed(range(last, first - 1, -stride))]


def _step(settings: ForecastSettings, long: LongTable) -> TimeStep:
    if settings.frequency is None:
        return infer_step(long.times, counted=long.counted, source=long.table.source)
    step = read_frequency(settings.frequency)
    if step.counted != long.counted:
        form = "whole numbers" if long.counted else "dates"
        raise SettingError(
            "data.frequency",
            f"is {step}, and the times in '{settings.columns.time}' are {form}",
            "Write steps, as in 1 step." if long.counted else "Write a unit of time, as in 1 hour.",
        )
    return step


def _end(series: Series, last: int | None, settings: ForecastSettings, step: TimeStep, horizon: int) -> int:
    """Return how many steps of a series are trained on; `last` is the time of its last row to train on, None where it has none."""
    length = len(series.values)
    if isinstance(settings.validation, (int, float)):
        return length - max(horizon, int(settings.validation * length) // horizon * horizon)
    if settings.validation is None:
        return length
    return 0 if last is None else step.place(last)[0] - series.first + 1


def _earlier(long: LongTable, held_out: LongTable, columns: SeriesColumns) -> list[Fault]:
    """Take rows that are not behind those to train on out of the rows to validate on; return their faults."""
    faults = []
    for key, moments in held_out.series.items():
        last = max((moment.time for moment in long.series.get(key, ())), default=None)
        early = [] if last is None else [moment for moment in moments if moment.time <= last]
        held_out.series[key] = moments[len(early) :]
        faults += [
            Fault(
                held_out.table.source,
                moment.line,
                "not later",
                f"{columns.time} is {held_out.table.rows[moment.row][columns.time]}, and the rows to train on go on behind it",
            )
            for moment in early
        ]
    return faults


def _unusable(series: Series, form: SeriesFormat, source: str, *, labelled: bool) -> Fault | None:
    """Return why nothing can be scored or predicted of a series; None where it can."""
    known = series.known_steps
    needed = form.history + form.horizon if labelled else form.history
    if known < needed:
        return _short(series, form.columns, source, known, "known", needed)
    if labelled:
        return None
    if np.count_nonzero(~np.isnan(series.values[known - form.history : known])) < _LEAST_KNOWN:
        return Fault(
            source,
            series.lines[known - 1],
            "empty history",
            f"{shown_key(form.columns, series.key)} has fewer than {_LEAST_KNOWN} values in its last {form.history} steps",
        )
    for place, name in enumerate(form.columns.known):
        there = series.covariates[known : known + form.horizon, place]
        missing = np.flatnonzero(np.isnan(there)).tolist() or [*range(len(there), form.horizon)]
        if missing:
            (moment,) = series.moments(form.step, known + missing[0], known + missing[0] + 1)
            return Fault(
                source,
                series.lines[-1],
                "missing covariate ahead",
                f"{name} of {shown_key(form.columns, series.key)} is not given for {form.step.shown(moment)}, step {missing[0] + 1} of "
                f"{form.horizon} ahead: add rows behind the last with {form.columns.label} left empty",
            )
    return None


def _short(series: Series, columns: SeriesColumns, source: str, length: int, use: str, needed: int) -> Fault:
    """Return the fault of a series of which too few steps are of a use, in words."""
    length, whole = max(0, length), len(series.values)
    steps = counted(whole, "step") + (f", {length:,} of them {use}" if length < whole else "")
    return Fault(
        source,
        series.lines[0],
        _SHORT,
        f"{shown_key(columns, series.key)} has {steps}, and a window needs {needed:,}: lower data.history or data.horizon",
    )


def _add(
    origins: _Origins, series: Series, start: int, places: Sequence[int], form: SeriesFormat, unit: float
) -> list[int]:
    """Add the origins of windows that can be scored; return them."""
    there = np.concatenate([[0], np.cumsum(~np.isnan(series.values))])
    added = []
    for place in places:
        before, behind = (
            there[place] - there[place - form.history],
            there[place + form.horizon] - there[place],
        )
        if before >= _LEAST_KNOWN and behind:
            origins.add(series, start, place, unit, at=place)
            added.append(place)
    return added


def _steps_ahead(series: Series, origin: int, form: SeriesFormat) -> list[dict[str, Any]]:
    named = dict(zip(form.columns.series, series.key, strict=True))
    moments = series.moments(form.step, origin, origin + form.horizon)
    return [{**named, form.columns.time: form.step.shown(moment)} for moment in moments]


def _gaps(series: Sequence[Series]) -> list[str]:
    """Return, in words, how many steps have no row."""
    gaps = [int(np.isnan(each.values[: each.known_steps]).sum()) for each in series]
    if not any(gaps):
        return []
    total, of = sum(each.known_steps for each in series), sum(count > 0 for count in gaps)
    return [
        f"{sum(gaps):,} of {total:,} steps have no value, in {of:,} of {len(series):,} series: the model is told where, and they are not scored."
    ]


def _form(series: Sequence[Series], form: SeriesFormat) -> str:
    count = f"{len(series):,} series" if form.columns.series else "one series"
    season = f"a season of {form.season:,}" if form.season > 1 else "no season"
    return f"{count}, {form.step} a step, {season}, {form.horizon:,} steps ahead from {form.history:,}"


def _nothing_left(table: Table, faults: Sequence[Fault]) -> DataError:
    """Return the error about rows of which no window can be made."""
    short = next((f": {fault.detail.partition(':')[0]}" for fault in faults if fault.reason == _SHORT), "")
    return DataError(
        "data",
        f"no series of {table.source} is long enough{short}",
        "Lower data.history or data.horizon, or give longer series.",
    )
