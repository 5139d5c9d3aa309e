"""Series of long tables: windows beside the same cut by hand, faults by line, and nothing of the future in what a model sees."""

from __future__ import annotations

import csv
import math
import random
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from snugfit.data.series.forecasting import ForecastSettings, SeriesFormat, load_series, load_series_rows
from snugfit.data.series.series_windows import collate
from snugfit.data.series.time_series import SeriesColumns
from snugfit.errors import DataError, SettingError

COLUMNS = SeriesColumns(("shop",), "day", "sold", ("price",), ("visitors",))
DAYS = 40
SETTINGS = ForecastSettings(COLUMNS, "rows.csv", validation=0.2, horizon=3, history=7)


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def made(days: int = DAYS, shops: str = "ab") -> list[dict[str, Any]]:
    drawn = random.Random(0)
    return [
        {
            "shop": shop,
            "day": str(date(2026, 1, 5) + timedelta(days=number)),
            "price": drawn.choice([1.0, 2.0]),
            "visitors": drawn.gauss(10, 2),
            "sold": round(drawn.gauss(100, 20) + 30 * (number % 7), 3),
        }
        for shop in shops
        for number in range(days)
    ]


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    monkeypatch.chdir(tmp_path)
    own = made()
    written(tmp_path / "rows.csv", own)
    return own


def target(rows: list[dict[str, Any]], shop: str = "a") -> list[float]:
    return [row["sold"] for row in rows if row["shop"] == shop]


def test_a_window_is_its_own_past_scaled_and_the_steps_behind_it(rows: list[dict[str, Any]]) -> None:
    data = load_series(SETTINGS)
    values = np.array(target(rows))
    # the last 6 of 40 days are held out; origins of windows to train on are 7 to 31
    assert (len(data.train), len(data.validation or ())) == (2 * 25, 2 * 2)
    for place in (0, 24):
        origin = 7 + place
        history = values[origin - 7 : origin]
        example = data.train[place]
        expected = (history - history.mean()) / history.std()
        np.testing.assert_allclose(example["history"], expected, rtol=1e-5)
        labels = (values[origin : origin + 3] - history.mean()) / history.std()
        np.testing.assert_allclose(example["labels"], labels, rtol=1e-5)
        unit = np.abs(values[7:34] - values[:27]).mean() / history.std()
        assert example["error_unit"].item() == pytest.approx(unit, rel=1e-5)
        prices = np.array([row["price"] for row in rows if row["shop"] == "a"])
        both = np.concatenate([prices[:34], [row["price"] for row in rows if row["shop"] == "b"][:34]])
        scaled = (prices[origin - 7 : origin + 3] - both.mean()) / both.std()
        np.testing.assert_allclose(example["known"][:, 0], scaled, rtol=1e-4)
        assert example["past"].shape == (7, 1) and example["known"].shape == (10, 1 + 10)


def test_a_batch_is_its_windows_one_by_one(rows: list[dict[str, Any]]) -> None:
    windows = load_series(SETTINGS).train
    places = [3, 30, 4]
    batch, singly = windows.batch(places), collate([windows[place] for place in places])
    assert batch.keys() == singly.keys()
    assert all(torch.equal(batch[name], singly[name]) for name in batch)


def test_nothing_behind_its_origin_changes_what_a_model_sees(rows: list[dict[str, Any]]) -> None:
    data = load_series(SETTINGS)
    later = [dict(row) for row in rows]
    for row in later:
        if row["day"] >= str(date(2026, 1, 5) + timedelta(days=34)):
            row |= {"sold": 1e6, "visitors": -1e6}
    written(Path("rows.csv"), later)
    changed = load_series(SETTINGS)
    assert data.format == changed.format
    for before, after in zip(data.train, changed.train, strict=True):
        assert all(torch.equal(before[name], after[name]) for name in before)
    assert data.validation is not None and changed.validation is not None
    before, after = data.validation[0], changed.validation[0]  # its origin is the first step held out
    assert all(
        torch.equal(before[name], after[name])
        for name in ("history", "observed", "past", "known", "error_unit")
    )
    assert not torch.equal(before["labels"], after["labels"])


def test_every_held_out_step_is_scored_once_from_an_origin_of_its_own(rows: list[dict[str, Any]]) -> None:
    validation = load_series(replace(SETTINGS, validation=0.35)).validation
    assert validation is not None and len(validation) == 2 * 4
    for place in range(4):
        history = np.array(target(rows)[21 + 3 * place : 28 + 3 * place])
        labels = validation[place]["labels"].double() * history.std() + history.mean()
        np.testing.assert_allclose(labels, target(rows)[28 + 3 * place : 31 + 3 * place], rtol=1e-4)
        assert validation.rows.origin(place) == f"rows.csv:{30 + 3 * place}"


def test_the_naive_forecast_is_scored_on_the_same_steps(rows: list[dict[str, Any]]) -> None:
    baseline = load_series(replace(SETTINGS, validation=0.35)).report.baseline
    errors, scaled = [], []
    for shop in "ab":
        values = np.array(target(rows, shop))
        unit = np.abs(values[7:28] - values[:21]).mean()
        for origin in (28, 31, 34, 37):
            own = np.abs(values[origin : origin + 3] - values[origin - 7 : origin - 4])
            errors += own.tolist()
            scaled += (own / unit).tolist()
    assert baseline == pytest.approx({"mase": np.mean(scaled), "mae": np.mean(errors)})


def test_rows_may_stand_in_any_order(rows: list[dict[str, Any]]) -> None:
    data = load_series(SETTINGS)
    random.Random(1).shuffle(rows)
    rows.sort(key=lambda row: str(row["shop"]))  # series stay in the order of their first rows
    written(Path("rows.csv"), rows)
    shuffled = load_series(SETTINGS)
    assert all(
        torch.equal(a["history"], b["history"]) for a, b in zip(data.train, shuffled.train, strict=True)
    )


def test_gaps_are_marked_and_not_scored(rows: list[dict[str, Any]]) -> None:
    del rows[12]
    rows[20]["sold"] = ""
    written(Path("rows.csv"), rows)
    data = load_series(replace(SETTINGS, bad_rows="skip"))
    assert data.report.skipped == {"missing target": 1}
    assert data.report.warnings == (
        "2 of 80 steps have no value, in 1 of 2 series: the model is told where, and they are not scored.",
    )
    window = data.train[6]  # its history is days 6 to 12, the last of them a gap
    assert window["observed"].tolist() == [1.0] * 6 + [0.0] and window["history"][-1] == 0
    known = np.array(target(made())[6:12])
    np.testing.assert_allclose(window["history"][:6], (known - known.mean()) / known.std(), rtol=1e-4)
    assert math.isnan(data.train[3]["labels"][2]) and not data.train[3]["labels"][:2].isnan().any()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda rows: rows.append(dict(rows[5])),
            r"duplicate time \(1\).*rows.csv:82: day is 2026-01-10 of shop 'a', as on line 7",
        ),
        (lambda rows: rows[3].update(sold=""), r"missing target \(1\).*rows.csv:5: sold is empty"),
        (lambda rows: rows[3].update(sold="nan"), r"missing target \(1\)"),
        (lambda rows: rows[3].update(sold="inf"), r"infinite number \(1\).*rows.csv:5: sold is inf"),
        (lambda rows: rows[3].update(sold="many"), r"not a number \(1\).*rows.csv:5: sold is 'many'"),
        (lambda rows: rows[3].update(price=""), r"missing covariate \(1\).*rows.csv:5: price is empty"),
        (
            lambda rows: rows[3].update(price="yes"),
            r"price is 'yes': write numbers as 1234.5, and yes and no as 1 and 0",
        ),
        (lambda rows: rows[3].update(day="soon"), r"unusable time \(1\).*rows.csv:5: day is 'soon', no date"),
        (lambda rows: rows[3].update(day=""), r"missing time \(1\)"),
        (lambda rows: rows[3].update(shop=""), r"missing series \(1\).*rows.csv:5: shop is empty"),
        (
            lambda rows: rows[3].update(day="2026-01-08 06:00"),
            r"time off the grid \(1\).*rows.csv:5: day is 2026-01-08 06:00:00, and the rows of shop 'a' are 1 day apart, such as at 2026-01-08",
        ),
        (
            lambda rows: rows[DAYS - 1].update(day="9026-01-01"),
            r"time far away \(1\).*rows.csv:41: day is 9026-01-01, 2,\d+,\d+ steps of 1 day from the middle row of shop 'a', which is of 2026-01-25",
        ),
        (
            lambda rows: rows.extend(made(9, "c")),
            r"short series \(1\).*rows.csv:82: shop 'c' has \d+ steps, 6 of them to train on, and a window needs 10",
        ),
        (lambda rows: rows.extend(made(1, "c")), r"shop 'c' has 1 step, .*and a window needs 10"),
    ],
)
def test_a_row_that_cannot_be_used_is_named_by_its_line_or_left_out(
    rows: list[dict[str, Any]], change: Any, words: str
) -> None:
    change(rows)
    written(Path("rows.csv"), rows)
    with pytest.raises(DataError, match=f"(?s){words}"):
        load_series(SETTINGS)
    assert sum(load_series(replace(SETTINGS, bad_rows="skip")).report.skipped.values()) == 1


def test_a_step_that_is_too_short_is_no_grid_that_fills_the_memory(rows: list[dict[str, Any]]) -> None:
    with pytest.raises(
        DataError, match=r"40 rows of shop 'a' in rows.csv spread over 3,369,601 steps of 1 second"
    ):
        load_series(replace(SETTINGS, frequency="1 second", bad_rows="skip"))


@pytest.mark.parametrize("days", [["20240131", 20240201, "20240229"], ["202311", "202312", "202401"]])
def test_dates_that_are_written_as_whole_numbers_are_refused(
    rows: list[dict[str, Any]], days: list[Any]
) -> None:
    own = [{**row, "day": day} for row, day in zip(rows, days, strict=False)]
    written(Path("rows.csv"), own)
    with pytest.raises(
        DataError, match=r"data.time: 'day' of rows.csv holds dates written as whole numbers, such as 202\d+"
    ):
        load_series(SETTINGS)


def test_numbers_of_as_many_digits_as_dates_count_steps(rows: list[dict[str, Any]]) -> None:
    own = [{**row, "day": 202598 + place} for place, row in enumerate(rows[:DAYS])]
    written(Path("rows.csv"), own)
    assert str(load_series(SETTINGS).format.step) == "1 step"


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"columns": replace(COLUMNS, time="date")}, DataError, "data.time: rows.csv has no column 'date'"),
        (
            {"columns": replace(COLUMNS, known=("sold",))},
            SettingError,
            "'sold' is already used by data.label",
        ),
        ({"history": 1}, SettingError, "data.history: got 1, and a model sees .*Give 2 or more"),
        ({"columns": replace(COLUMNS, series=())}, DataError, r"duplicate time \(40\)"),
        ({"frequency": "1 step"}, SettingError, "is 1 step, and the times in 'day' are dates"),
        (
            {"horizon": 20, "history": 30},
            DataError,
            r"short series \(2\).*has 40 steps, 20 of them to train on, and a window needs 50",
        ),
        (
            {"bad_rows": "skip", "horizon": 20, "history": 30},
            DataError,
            "no series of rows.csv is long enough: shop 'a' has 40 steps, 20 of them to train on, and a window needs 50",
        ),
    ],
)
def test_settings_that_fit_no_series_are_refused(
    rows: list[dict[str, Any]], settings: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=f"(?s){words}"):
        load_series(replace(SETTINGS, **settings))


@pytest.mark.parametrize(
    ("days", "horizon", "history", "windows"),
    # two seasons of a week, or three horizons; where series are too short for that, a quarter of them is predicted from half of what is left
    [(40, 7, 21, 2 * 6), (34, 7, 10, 2 * 11), (20, 5, 5, 2 * 6), (6, 1, 2, 2 * 3)],
)
def test_without_settings_windows_are_as_long_as_short_series_allow(
    rows: list[dict[str, Any]], days: int, horizon: int, history: int, windows: int
) -> None:
    written(Path("rows.csv"), made(days))
    data = load_series(replace(SETTINGS, validation=0.1, horizon=None, history=None))
    assert (data.format.horizon, data.format.history, len(data.train)) == (horizon, history, windows)
    assert data.validation is not None and len(data.validation) == 2


@pytest.mark.parametrize("levels", [(0.5, 0.1), (0.1, 0.9), (0.0, 0.5), (0.5, 1.0), (0.5, 0.5)])
def test_quantiles_ascend_around_the_median(levels: tuple[float, ...]) -> None:
    with pytest.raises(SettingError, match="data.quantiles"):
        replace(SETTINGS, quantiles=levels)


def test_a_file_to_validate_on_goes_on_where_the_rows_to_train_on_end(rows: list[dict[str, Any]]) -> None:
    whole = load_series(SETTINGS)
    first = str(date(2026, 1, 5) + timedelta(days=34))
    written(Path("train.csv"), [row for row in rows if row["day"] < first])
    written(Path("later.csv"), [row for row in rows if row["day"] >= first])
    parts = load_series(replace(SETTINGS, train="train.csv", validation="later.csv"))
    assert parts.format == whole.format and parts.report.baseline == whole.report.baseline
    assert whole.validation is not None and parts.validation is not None
    for mine, theirs in ((parts.train, whole.train), (parts.validation, whole.validation)):
        assert len(mine) == len(theirs)
        assert all(torch.equal(a[name], b[name]) for a, b in zip(mine, theirs, strict=True) for name in a)
    assert parts.validation.rows.origin(0) == "later.csv:2"
    with pytest.raises(
        DataError,
        match=r"(?s)not later \(80\).*rows.csv:2: day is 2026-01-05, and the rows to train on go on",
    ):
        load_series(replace(SETTINGS, validation="rows.csv", train="rows.csv"))


def test_a_file_is_scored_by_the_errors_of_the_steps_trained_on(rows: list[dict[str, Any]]) -> None:
    form = load_series(SETTINGS).format
    again = SeriesFormat.of({**form.as_dict(), "columns": vars(COLUMNS), "step": vars(form.step)})
    assert again == form
    scored = load_series_rows("rows.csv", form, labelled=True, bad_rows="fail")
    assert len(scored.examples) == 2 * 11 and scored.lines[0] == 9
    unit = form.errors["a",] / np.std(target(rows)[:7])
    assert scored.examples[0]["error_unit"].item() == pytest.approx(unit, rel=1e-5)


def test_a_series_of_faulty_rows_alone_is_left_out(rows: list[dict[str, Any]]) -> None:
    form = load_series(SETTINGS).format
    whole = load_series_rows("rows.csv", form, labelled=True, bad_rows="skip")
    written(Path("rows.csv"), [*rows, {**rows[0], "shop": "b2", "day": ""}])
    scored = load_series_rows("rows.csv", form, labelled=True, bad_rows="skip")
    assert len(scored.examples) == len(whole.examples)


def test_a_window_to_predict_from_ends_at_the_last_target(rows: list[dict[str, Any]]) -> None:
    form = load_series(SETTINGS).format
    with pytest.raises(
        DataError, match=r"(?s)rows.csv:41: price of shop 'a' is not given for 2026-02-14, step 1 of 3 ahead"
    ):
        load_series_rows("rows.csv", form, labelled=False, bad_rows="fail")
    ahead = [
        {"shop": shop, "day": str(date(2026, 2, 14) + timedelta(days=number)), "price": 1 + number % 2}
        for shop in "ab"
        for number in range(3)
    ]
    written(Path("ahead.csv"), [*rows, *ahead])
    read = load_series_rows("ahead.csv", form, labelled=False, bad_rows="fail")
    window = read.examples[0]
    assert read.lines == [41, 81] and "labels" not in window
    history = np.array(target(rows)[-7:])
    assert (window["mean"], window["spread"]) == pytest.approx((history.mean(), history.std()))
    assert window["steps"] == [{"shop": "a", "day": row["day"]} for row in ahead[:3]]
    (mean, spread), _ = form.scales
    np.testing.assert_allclose(window["known"][-3:, 0], (np.array([1, 2, 1]) - mean) / spread, rtol=1e-5)


def test_series_far_from_zero_are_scaled_as_those_near_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    windows = []
    for offset in (0.0, 1e9):
        written(tmp_path / "rows.csv", [{**row, "sold": row["sold"] + offset} for row in made()])
        windows.append(load_series(SETTINGS).train[0])
    torch.testing.assert_close(windows[0]["history"], windows[1]["history"], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(windows[0]["labels"], windows[1]["labels"], rtol=1e-4, atol=1e-4)


def test_a_number_whose_square_is_none_is_a_fault_of_its_row(
    rows: list[dict[str, Any]], tmp_path: Path
) -> None:
    rows[3]["sold"] = 1e308
    written(tmp_path / "rows.csv", rows)
    with pytest.raises(DataError, match=r"rows.csv:5: .*1e\+308, whose square is no number"):
        load_series(SETTINGS)
