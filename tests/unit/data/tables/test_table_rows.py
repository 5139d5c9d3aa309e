"""Tables as models read them: against scikit-learn's scaling, and every row and column that cannot be used."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.preprocessing import RobustScaler

from snugfit.data.loader import Loader
from snugfit.data.order import Order
from snugfit.data.tables.table_format import TableFormat, fit_format
from snugfit.data.tables.table_rows import (
    CATEGORIES,
    NUMBERS,
    TableSettings,
    collate,
    load_table,
    load_table_rows,
)
from snugfit.errors import DataError, SettingError

ROWS: list[dict[str, Any]] = [
    {
        "age": 20 + place,
        "city": ["oslo", "rome", "bonn"][place % 3],
        "code": place % 4,
        "label": "ab"[place % 2],
    }
    for place in range(40)
]


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def file(tmp_path: Path) -> str:
    return write(tmp_path / "rows.jsonl", ROWS)


def test_numbers_are_scaled_as_scikit_learn_scales_them_and_drawn_in() -> None:
    values = np.random.default_rng(0).normal(3, 50, 401)
    (column,) = fit_format([{"x": value} for value in values], ["x"], (), 4).numbers
    scaled = RobustScaler().fit_transform(values[:, None])[:, 0]
    drawn = scaled / np.sqrt(1 + (scaled / 3) ** 2)
    ours, _ = column.encode([{"x": value} for value in values], {})
    np.testing.assert_allclose(ours, drawn, rtol=1e-9)
    assert np.abs(ours).max() < 3
    np.testing.assert_allclose(column.edges, np.quantile(drawn, [0, 0.25, 0.5, 0.75, 1]), atol=1e-9)


def test_the_format_is_fitted_on_the_rows_to_train_on_alone(tmp_path: Path) -> None:
    rows = [
        {"x": 1000.0 * (place >= 30) + place, "c": f"c{place // 30}", "label": place % 2}
        for place in range(40)
    ]
    train, other = write(tmp_path / "train.jsonl", rows[:30]), write(tmp_path / "other.jsonl", rows[30:])
    table = load_table(TableSettings(train=train, validation=other))
    (x,), (c,) = table.format.numbers, table.format.categories
    assert x.middle == 14.5 and c.values == ("c0",)
    assert table.validation is not None and table.validation[0][CATEGORIES].tolist() == [0]
    assert table.report.warnings == ("10 of 10 rows have a category in 'c' that no row to train on has.",)


def test_a_number_a_category_and_their_gaps(file: str) -> None:
    rows = [*ROWS, {"age": None, "city": "", "code": "NA", "label": "a"}]
    fitted = fit_format(rows, ["age", "city", "code"], ["code"], 4)
    assert [each.name for each in fitted.numbers] == ["age"]
    assert [each.values for each in fitted.categories] == [("bonn", "oslo", "rome"), ("0", "1", "2", "3")]
    numbers, codes, faults = fitted.encode(
        [{"age": "", "city": "paris", "code": 3.0}, {"age": 39.5, "city": " rome ", "code": "1"}]
    )
    assert (numbers.tolist(), codes.tolist(), faults) == ([[0.0, 1.0], [0.0, 0.0]], [[0, 4], [3, 2]], {})
    plain = fitted.plain({"age": "39", "city": " rome ", "code": "?", "more": 1})
    assert plain == {"age": 39.0, "city": "rome", "code": None}
    assert TableFormat.of(json.loads(json.dumps(fitted.as_dict()))) == fitted


def test_examples_are_tensors_and_labels_of_both_kinds(file: str) -> None:
    classes = load_table(TableSettings(train=file, validation=0.25, categories=("code",)))
    example = classes.train[0]
    assert example[NUMBERS].dtype == torch.float32 and example[CATEGORIES].shape == (2,)
    assert classes.labels == ("a", "b") and classes.report.labels == {"a": 15, "b": 15}
    number = load_table(
        TableSettings(train=file, validation=None, label="age", classes=False, columns=("city",))
    )
    assert number.train[3]["labels"] == 23.0 and number.labels == ()
    assert (number.middle, number.spread) == (39.5, pytest.approx(float(np.std(np.arange(20, 60)))))
    assert number.train.rows.origin(3) == f"{file}:4"


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"age": "old"}, "age is 'old', no number as in other rows"),
        ({"age": math.inf}, "age is inf"),
        ({"age": [1]}, "age is '[1]', no number"),
        ({"label": ""}, "label is empty"),
        ({"label": None}, "label is null"),
    ],
)
def test_a_row_that_cannot_be_used_is_named_or_left_out(
    tmp_path: Path, changed: dict[str, Any], fault: str
) -> None:
    file = write(tmp_path / "rows.jsonl", [*ROWS[:7], {**ROWS[7], **changed}, *ROWS[8:]])
    with pytest.raises(DataError) as error:
        load_table(TableSettings(train=file, validation=None))
    assert f"rows.jsonl:8: {fault}" in str(error.value)
    table = load_table(TableSettings(train=file, validation=None, bad_rows="skip"))
    assert len(table.train) == 39 and sum(table.report.skipped.values()) == 1


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ([f"2026-01-{day % 28 + 1:02}" for day in range(40)], "holds dates, such as 2026-01-01"),
        (
            [f"Mr {place}" for place in range(40)],
            "40 different values in 40 rows, of which nothing can be learned",
        ),
        (
            [f"{place},5" for place in range(40)],
            "numbers that are read as texts, such as 0,5. Write them with",
        ),
        ([f"{place},{place:03}.5" for place in range(40)], "numbers that are read as texts, such as 0,000.5"),
        ([None] * 40, "is empty in the rows to train on"),
    ],
)
def test_a_column_of_which_nothing_can_be_learned_is_refused(
    tmp_path: Path, column: list[Any], message: str
) -> None:
    rows = [{**row, "more": value} for row, value in zip(ROWS, column, strict=True)]
    with pytest.raises(DataError, match="data.columns: column 'more'") as error:
        load_table(TableSettings(train=write(tmp_path / "rows.jsonl", rows), validation=None))
    assert message in str(error.value)
    others = ", ".join(name for name in ROWS[0] if name != "label")
    assert f"Leave it out: data.columns=[{others}]" in str(error.value) or "Write them" in str(error.value)


def test_settings_that_name_no_column(file: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no column 'agee'.*'age'"):
        load_table(TableSettings(train=file, columns=("agee",)))
    with pytest.raises(SettingError, match="already used by data.label"):
        load_table(TableSettings(train=file, columns=("age", "label")))
    with pytest.raises(SettingError, match="'town' is no column to learn from"):
        load_table(TableSettings(train=file, categories=("town",)))
    alone = write(tmp_path / "alone.jsonl", [{"label": row["label"]} for row in ROWS])
    with pytest.raises(DataError, match="has a label and no other column"):
        load_table(TableSettings(train=alone))
    same = write(tmp_path / "same.jsonl", [{"x": row["age"], "y": 3} for row in ROWS])
    with pytest.raises(DataError, match="column 'y' has one value alone"):
        load_table(TableSettings(train=same, label="y", classes=False))
    with pytest.raises(DataError, match=r"one class only in column 'y' \(3\)"):
        load_table(TableSettings(train=same, label="y"))


def test_a_window_that_is_taken_at_once_is_that_of_its_rows_one_by_one(file: str) -> None:
    rows = load_table(TableSettings(train=file, validation=0.25)).train
    loader = Loader(rows, Order(len(rows), 7, seed=3, shuffle=True), collate)
    one_by_one = Loader([rows[place] for place in range(len(rows))], loader.order, collate)
    for window, other in zip(loader.windows(0, 6), one_by_one.windows(0, 6), strict=True):
        assert window.data.keys() == other.data.keys()
        assert all(torch.equal(window.data[name], other.data[name]) for name in window.data)
        assert [rows.indices[place] for place in other.ids] == list(window.ids)


def test_rows_of_one_source_are_read_by_the_format_of_another(file: str, tmp_path: Path) -> None:
    table = load_table(TableSettings(train=file, validation=None))
    new = write(tmp_path / "new.jsonl", [{"age": 33, "city": "rome", "code": 1, "label": "z"}, ROWS[0]])
    rows = load_table_rows(new, table.format, label=None, labels=(), bad_rows="fail")
    assert len(rows.examples) == 2 and rows.lines == [1, 2] and "labels" not in rows.examples[0]
    with pytest.raises(DataError, match="the label 'z' was not trained"):
        load_table_rows(new, table.format, label="label", labels=table.labels, bad_rows="fail")
    left = load_table_rows(new, table.format, label="label", labels=table.labels, bad_rows="skip")
    assert left.lines == [2] and left.rows == [ROWS[0]]
    fewer = write(tmp_path / "fewer.jsonl", [{"age": 33}])
    with pytest.raises(DataError, match="has no column 'code'"):
        load_table_rows(fewer, table.format, label=None, labels=(), bad_rows="fail")


def test_rows_of_a_data_frame_are_read_with_its_gaps() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {
            "age": pandas.array([20, None, 22] * 10, dtype="Int64"),
            "size": np.array([1.5, np.nan, 2.5] * 10, dtype=np.float32),
            "city": ["oslo", None, "rome"] * 10,
            "label": [0, 1, 0] * 10,
        }
    )
    table, of_frame = (
        load_table(TableSettings(train=rows, validation=None))
        for rows in (lambda: frame.to_dict("records"), lambda: frame.set_index("age", drop=False))
    )
    assert list(of_frame.fingerprints.values()) == list(table.fingerprints.values())
    assert of_frame.format == table.format
    assert [(each.name, each.gaps) for each in table.format.numbers] == [("age", True), ("size", True)]
    assert table.train[1][NUMBERS].tolist() == [0.0, 0.0, 1.0, 1.0]
    assert table.train[1][CATEGORIES].tolist() == [0] and table.train[2][CATEGORIES].tolist() == [2]
