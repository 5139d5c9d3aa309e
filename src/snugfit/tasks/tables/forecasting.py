"""Forecasts of series: quantiles of the next steps of each, learned from windows over all of them."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snugfit.data.bad_rows import BadRow
from snugfit.data.series.time_steps import TimeStep, are_counted, infer_step, read_moment
from snugfit.data.tables.table_cells import holds_dates, holds_numbers, is_gap
from snugfit.errors import DataError, SettingError
from snugfit.tasks.inference import Inference, Prediction, Row
from snugfit.tasks.recognition import Recognition, Rows, Script, columns_of
from snugfit.tasks.task import Task, loss_of
from snugfit.tasks.task_card import Card
from snugfit.units import counted

if TYPE_CHECKING:
    from snugfit.data.files.file_rows import FileRows
    from snugfit.data.series.series_windows import SeriesWindows
    from snugfit.data.usable_rows import Part
    from snugfit.kit.sharded_loading import KeepPart
    from snugfit.tasks.task_recipe import TaskRecipe

NETWORKS = ("tide",)
_STEPS = "steps"
_TIMES = (
    "time",
    "timestamp",
    "datetime",
    "date",
    "ds",
    "day",
    "week",
    "month",
    "hour",
    "t",
    "step",
    "period",
)
_TARGETS = ("target", "y", "value", "sales", "sold", "demand", "load", "consumption", "count", "label")
_MOST_SERIES_COLUMNS = 2
_REGULAR = 0.9
"""Share of neighbours one step apart, from which rows are taken for series though nothing was said of it."""
_NO_REPEATS = 0.95
"""Share of rows with a time of their own in their series, from which the others are mistakes."""


def _load(recipe: TaskRecipe, empty: bool, _keep: KeepPart | None) -> Task:
    from snugfit.data.series.forecasting import ForecastSettings, load_series
    from snugfit.data.series.series_windows import collate
    from snugfit.data.series.time_series import SeriesColumns
    from snugfit.models.bundle import SERIES_NETWORK
    from snugfit.models.series_network import SeriesNetwork, series_settings
    from snugfit.step.build import Material

    settings = series_settings(recipe.model, recipe.folder)
    data = recipe.data
    columns = SeriesColumns(
        tuple(data.series or ()), data.time, data.label, tuple(data.known or ()), tuple(data.past or ())
    )
    series = load_series(
        ForecastSettings(
            columns=columns,
            train=data.rows,
            validation=data.held_out,
            horizon=data.horizon,
            history=data.history,
            season=data.season,
            frequency=data.frequency,
            stride=data.stride,
            quantiles=tuple(data.quantiles),
            bad_rows=data.bad_rows,
        ),
        folder=recipe.folder,
    )
    form = series.format
    network = SeriesNetwork(
        settings=settings,
        history=form.history,
        horizon=form.horizon,
        known=form.known,
        past=form.past,
        quantiles=form.quantiles,
    )
    return Task(
        Material(
            network.make(recipe.train.seed, empty=empty),
            series.train,
            series.validation,
            loss_of(recipe),
            collate,
        ),
        meta={
            "task": recipe.task,
            "series": form.as_dict(),
            SERIES_NETWORK: network.as_dict(),
            "numerics": recipe.as_dict()["plan"]["numerics"],
        },
        data={**series.report.as_dict(), "series": series.series},
        fingerprints=series.fingerprints,
        messages=series.report.warnings,
        example_rows=series.example_rows,
    )


def _inference(meta: Mapping[str, Any], _tokenizer: Any) -> Inference:
    from snugfit.core.losses import pinball
    from snugfit.data.series.forecasting import SeriesFormat, load_series_rows, windows_ahead
    from snugfit.data.series.series_windows import collate

    form = SeriesFormat.of(meta["series"])
    names = [f"quantile {level:g}" for level in form.quantiles]

    def encoded(rows: Sequence[Row]) -> SeriesWindows:
        return windows_ahead(rows, form)

    def read(source: str, /, *, labelled: bool, bad_rows: str) -> FileRows:
        return load_series_rows(source, form, labelled=labelled, bad_rows=bad_rows, folder=Path.cwd())

    def decode(outputs: Any, examples: Sequence[Any]) -> list[Prediction]:
        from snugfit.core.losses import logits_of

        quantiles = logits_of(outputs).cpu().double()
        predictions = []
        for example, own in zip(examples, quantiles, strict=True):
            values = (own * example["spread"] + example["mean"]).tolist()
            steps = zip(example[_STEPS], values, strict=True)
            predictions.append(
                {_STEPS: [{**step, **dict(zip(names, each, strict=True))} for step, each in steps]}
            )
        return predictions

    return Inference(
        encode=encoded,
        collate=collate,
        decode=decode,
        columns=(*form.columns.series, form.columns.time, *names),
        read=read,
        unfolded=lambda prediction: list(prediction[_STEPS]),
        loss=pinball,
        metrics=CARD.metrics,
    )


def _refuse_folds(_recipe: TaskRecipe) -> Part:
    raise SettingError(
        "task",
        f"{CARD.name} is learned from the past, and folds that are drawn at random hold out steps before those to train on",
        "Validate by time: data.validation: 0.2 scores every horizon in the last fifth of each series.",
    )


def _recognize(source: Rows | Script, data: Mapping[str, Any]) -> Recognition | None:
    if not isinstance(source, Rows) or not source.rows:
        return None
    time = data.get("time") or _time_column(source)
    if time is None or time not in source.columns:
        return None
    moments = _moments(source, time)
    if moments is None:
        return None
    columns = _series_columns(source, time, moments, data)
    if columns is None:
        return None
    numbers = [name for name in source.columns if _is_number(source, name) and name not in (time, *columns)]
    informative = [name for name in numbers if _tells(source, name)]
    named = data.get("label") or source.named(_TARGETS)
    label = named or (informative[-1] if informative else None)
    if label not in numbers:
        return None
    step, regular = _frequency(source, columns, moments, counted=are_counted(source.values(time)))
    if step is None or (regular < _REGULAR and "time" not in data):
        return None
    known = columns_of(data.get("known") or ())
    past = [name for name in informative if name not in (label, *known)]
    if "past" in data:
        past = [*columns_of(data["past"] or ())]
    empty = sum(is_gap(row.get(label)) for row in source.rows)
    count = len(_by_series(source, columns, moments))
    settings: dict[str, Any] = {
        **({"series": columns} if columns else {}),
        "time": time,
        "label": label,
        **({"past": tuple(past)} if past else {}),
        **({"bad_rows": "skip"} if empty else {}),
    }
    left_out = (
        f"{counted(empty, 'row')} without '{label}': gaps, which are not scored; fail ends the run instead"
    )
    return Recognition(
        data=settings,
        reason=f"{counted(len(source.rows), 'row')} of {count:,} series, {step} a step in column '{time}', a number to predict in '{label}'",
        score=0.6 if named is None and _ends_in_classes(source, (time, *columns)) else 0.95,
        examples=len(source.rows),
        comments={
            "data.time": f"{step} a step",
            "data.label": f"the number to predict; {len(source.classes(label)):,} different ones",
            **(
                {"data.past": "known up to now only; what is known ahead goes into data.known"}
                if past
                else {}
            ),
            **({"data.bad_rows": left_out} if empty else {}),
        },
    )


def _time_column(rows: Rows) -> str | None:
    """Return the column of dates, or a column of whole numbers whose name says that they are times."""
    dates = [name for name in rows.columns if holds_dates([row.get(name) for row in rows.rows])]
    named = rows.named(_TIMES)
    if named in dates or (named is not None and not dates and are_counted(rows.values(named))):
        return named
    return dates[0] if len(dates) == 1 else None


def _moments(rows: Rows, time: str) -> list[int] | None:
    """Return the moment of each row; None where one has none."""
    counted = are_counted(rows.values(time))
    try:
        return [read_moment(time, row, counted=counted) for row in rows.rows]
    except BadRow:
        return None


def _series_columns(
    rows: Rows, time: str, moments: Sequence[int], data: Mapping[str, Any]
) -> tuple[str, ...] | None:
    """Return the fewest columns that tell rows of one time apart; None where none do.

    Where a few rows are there twice, they are those that leave as few of them as any: the run then names their lines.
    """
    if "series" in data:
        return columns_of(data["series"] or ())
    label = data.get("label") or rows.named(_TARGETS)
    names = [
        name
        for name in rows.columns
        if name not in (time, label)
        and len(rows.classes(name)) <= len(rows.rows) // 3
        and not _has_fractions(rows, name)
    ]
    apart: dict[tuple[str, ...], int] = {}
    for count in range(_MOST_SERIES_COLUMNS + 1):
        for columns in itertools.combinations(names, count):
            keys = {
                (*(str(row.get(name)) for name in columns), moment)
                for row, moment in zip(rows.rows, moments, strict=True)
            }
            if len(keys) == len(rows.rows):
                return columns
            apart[columns] = len(keys)
    nearest = max(apart, key=lambda columns: apart[columns])  # the first of them has the fewest columns
    return nearest if apart[nearest] >= _NO_REPEATS * len(rows.rows) else None


def _frequency(
    rows: Rows, columns: Sequence[str], moments: Sequence[int], *, counted: bool
) -> tuple[TimeStep | None, float]:
    """Return the step of rows, and the share of neighbours that lie one step apart; None where there is no step."""
    series = [sorted(each) for each in _by_series(rows, columns, moments).values()]
    try:
        step = infer_step(series, counted=counted, source=rows.path.name)
    except DataError:
        return None, 0.0
    pairs = [pair for each in series for pair in itertools.pairwise(each)]
    single = sum(step.place(after)[0] - step.place(before)[0] == 1 for before, after in pairs)
    return step, single / max(1, len(pairs))


def _by_series(
    rows: Rows, columns: Iterable[str], moments: Sequence[int]
) -> dict[tuple[str, ...], list[int]]:
    series: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for row, moment in zip(rows.rows, moments, strict=True):
        series[tuple(str(row.get(name)) for name in columns)].append(moment)
    return series


def _is_number(rows: Rows, column: str) -> bool:
    return holds_numbers([row.get(column) for row in rows.rows])


def _tells(rows: Rows, column: str) -> bool:
    """Return whether a column of numbers says something: neither is it always the same, nor does it only count the rows."""
    return len(rows.classes(column)) > 1 and not rows.counts_rows(column)


def _ends_in_classes(rows: Rows, others: Sequence[str]) -> bool:
    """Return whether the last column, where labels stand, holds a few names, or two numbers: likelier to be told than a number that nothing names."""
    last = rows.columns[-1]
    most = 2 if _is_number(rows, last) else len(rows.rows) // 5
    return last not in others and 2 <= len(rows.classes(last)) <= most


def _has_fractions(rows: Rows, column: str) -> bool:
    """Return whether a column holds numbers that are not whole, which name no series."""
    return _is_number(rows, column) and not are_counted(rows.values(column))


CARD = Card(
    name="forecasting",
    summary="Predict the next steps of many series, as quantiles.",
    loss="pinball",
    metrics=("mase", "pinball", "coverage"),
    of_rows=False,
    settings=(
        "series",
        "time",
        "label",
        "known",
        "past",
        "horizon",
        "history",
        "season",
        "frequency",
        "stride",
        "quantiles",
        "bad_rows",
    ),
    load=_load,
    inference=_inference,
    networks=NETWORKS,
    model="series",
    recognize=_recognize,
    read_rows=_refuse_folds,
    plain_rows=True,
    rows="a long table: a row for each step of each series, with its time and its number",
    pipeline="time-series-forecasting",
)
