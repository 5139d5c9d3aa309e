"""Rows held out by groups and by time: no group and no moment on both sides, whatever the task, and columns that cannot be used."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from snugfit.data.examples import Examples
from snugfit.data.named_sources import sources_of
from snugfit.data.series.forecasting import ForecastSettings
from snugfit.data.series.time_series import SeriesColumns
from snugfit.data.sources import Table, read_table
from snugfit.data.splits.hold_out import HoldOut
from snugfit.data.splits.sides import groups_of, make_sides
from snugfit.data.tables.table_rows import TableSettings, load_table
from snugfit.errors import DataError, SettingError
from snugfit.recipe import load_recipe
from snugfit.tasks.rows import read_training_rows
from tests.unit.data.loaders import LOADERS, load, numbers_of, row_of, write_rows

COUNT = 60


def people() -> list[dict[str, Any]]:
    """Rows of twelve people, in no order, and the day of each, of which there are thirty."""
    order = list(range(COUNT))
    random.Random(1).shuffle(order)
    return [
        {**row_of(number), "who": f"p{order[number] % 12}", "when": f"2026-03-{1 + order[number] // 2:02}"}
        for number in range(COUNT)
    ]


@pytest.mark.parametrize("task", LOADERS)
def test_no_group_is_on_both_sides(task: str, tmp_path: Path) -> None:
    rows = people()
    loaded = load(task, tmp_path, write_rows(tmp_path, rows), HoldOut(0.25, group=("who",)))
    train, held_out = numbers_of(loaded.train), numbers_of(loaded.validation)
    sides = [{rows[number]["who"] for number in side} for side in (train, held_out)]
    assert not sides[0] & sides[1] and sides[0] | sides[1] == {f"p{n}" for n in range(12)}
    if task != "causal-lm":  # of which a block has several rows, and is known by the first
        assert train | held_out == set(range(COUNT)) and len(held_out) == 15
    again = load(task, tmp_path, str(tmp_path / "rows.jsonl"), HoldOut(0.25, group=("who",)))
    assert numbers_of(again.validation) == held_out


@pytest.mark.parametrize("task", LOADERS)
def test_the_last_days_are_held_out(task: str, tmp_path: Path) -> None:
    rows = people()
    loaded = load(task, tmp_path, write_rows(tmp_path, rows), HoldOut(0.2, time="when"))
    train, held_out = numbers_of(loaded.train), numbers_of(loaded.validation)
    assert max(rows[number]["when"] for number in train) < min(rows[number]["when"] for number in held_out)
    if task != "causal-lm":
        assert train | held_out == set(range(COUNT)) and len(held_out) == 12


def examples(folder: Path, rows: Sequence[dict[str, Any]]) -> Examples:
    (folder / "r.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    table = read_table(str(folder / "r.jsonl"))
    return Examples.of(list(range(len(rows))), table, range(len(rows)))


def test_groups_keep_the_share_of_each_class(tmp_path: Path) -> None:
    rows = [{"who": n // 4, "rare": n // 4 % 5 == 0} for n in range(400)]
    made = make_sides(
        [examples(tmp_path, rows)],
        HoldOut(0.2, group=("who",)),
        seed=0,
        classes=[row["rare"] for row in rows],
    )
    held = [rows[place]["rare"] for place in made.shown]
    assert len(held) == 80 and sum(held) == 16 and not made.warnings


def test_groups_that_are_too_large_are_said_and_one_class_stays(tmp_path: Path) -> None:
    rows = [{"who": "a" if n < 30 else "b"} for n in range(50)]
    made = make_sides([examples(tmp_path, rows)], HoldOut(0.1, group=("who",)), seed=0)
    assert set(made.shown) == set(range(30, 50))  # the smaller one
    (warning,) = made.warnings
    assert warning == (
        "40.0% of the rows are held out (1 whole group by who), where data.validation.share asks for 10.0%."
    )
    with pytest.raises(DataError, match="each of 2 groups has a class alone"):
        make_sides(
            [examples(tmp_path, rows)],
            HoldOut(0.1, group=("who",)),
            seed=0,
            classes=[row["who"] for row in rows],
        )


def test_rows_are_of_a_group_by_all_columns_and_whole_numbers_are_one_name(tmp_path: Path) -> None:
    rows = [{"ward": n % 2, "bed": float(n // 2 % 5)} for n in range(20)]
    rows[0]["bed"] = 0
    made = make_sides([examples(tmp_path, rows)], HoldOut(0.1, group=("ward", "bed")), seed=0)
    (pair,) = {(rows[place]["ward"], int(rows[place]["bed"])) for place in made.shown}
    assert [place for place, row in enumerate(rows) if (row["ward"], int(row["bed"])) == pair] == [
        *made.shown
    ]


def as_examples(rows: list[dict[str, Any]]) -> Examples:
    places = range(len(rows))
    return Examples.of(rows, Table("rows", ("who",), rows, [*places], "0"), places)


def test_a_group_has_one_name_whichever_file_or_library_wrote_it(tmp_path: Path) -> None:
    pd = pytest.importorskip("pandas")
    cells = ["7.0", 7, 7.0, "7", np.float32(7), np.int64(7), "07", "7.5", True, "True"] * 2
    groups = groups_of(as_examples([{"who": cell} for cell in cells]), ("who",))
    assert groups[:10] == [("7",)] * 6 + [("07",), ("7.5",), ("True",), ("True",)]
    for cell in (pd.NA, pd.NaT, np.float32("nan"), None, ""):
        with pytest.raises(DataError, match="the row has no who"):
            groups_of(as_examples([{"who": "a"}, {"who": cell}]), ("who",))


@pytest.mark.parametrize(
    ("cells", "kind"),
    [
        ([3, 1, 10, 2, 2], "numbers"),
        (["3", "1", "1e1", "2.5", "2.5"], "texts of numbers"),
        (
            ["2026-03", "2026-01-31", "2026-04-01 10:00", "2026-02-01T00:00+00:00", "2026-02-01 00:00"],
            "dates",
        ),
    ],
)
def test_times_are_numbers_or_dates_and_equal_ones_stay_together(
    cells: list[Any], kind: str, tmp_path: Path
) -> None:
    rows = [{"at": cell} for cell in cells]
    assert [*make_sides([examples(tmp_path, rows)], HoldOut(0.2, time="at"), seed=0).shown] == [2], kind
    # three rows are asked for, and two of them are of one moment
    assert [*make_sides([examples(tmp_path, rows)], HoldOut(0.6, time="at"), seed=0).shown] == [0, 2], kind


@pytest.mark.parametrize(
    ("rows", "hold_out", "message"),
    [
        ([{"a": 1}, {"a": 2}], HoldOut(0.5, group=("who",)), r"data\.validation\.group: .*r\.jsonl has no column 'who'"),
        ([{"who": "a"}, {"who": "a"}], HoldOut(0.5, group=("who",)), "all rows have one who"),
        ([{"who": "a"}, {"who": " "}], HoldOut(0.5, group=("who",)), r"r\.jsonl:2: the row has no who"),
        ([{"who": "a"}, {"who": None}], HoldOut(0.5, group=("who",)), r"r\.jsonl:2: the row has no who"),
        ([{"at": 1}, {"at": 1}], HoldOut(0.5, time="at"), r"data\.validation\.time: all rows have one at"),
        ([{"at": 1}, {"at": 2}, {"at": "soon"}], HoldOut(0.5, time="at"), r"r\.jsonl:3: at is 'soon', no number"),
        ([{"at": "2026-01-01"}, {"at": "03/04/2026"}], HoldOut(0.5, time="at"), r"r\.jsonl:2: at is '03/04/2026', no date"),
        ([{"at": "2026-01-01"}, {"at": "2026-02-30"}], HoldOut(0.5, time="at"), r"r\.jsonl:2: at is '2026-02-30'"),
        ([{"at": "2026-01-01"}, {"at": ""}], HoldOut(0.5, time="at"), r"r\.jsonl:2: at is empty"),
    ],
)  # fmt: skip
def test_columns_that_hold_nothing_to_go_by_are_named_by_file_and_line(
    rows: list[dict[str, Any]], hold_out: HoldOut, message: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=message):
        make_sides([examples(tmp_path, rows)], hold_out, seed=0)


def test_a_class_that_only_the_last_rows_have_is_refused(tmp_path: Path) -> None:
    rows = [{"at": n} for n in range(10)]
    with pytest.raises(DataError, match="all rows of 'new' are among the last ones"):
        make_sides(
            [examples(tmp_path, rows)],
            HoldOut(0.2, time="at"),
            seed=0,
            classes=["old"] * 8 + ["new"] * 2,
        )


def test_a_text_without_columns_has_no_groups(tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("ann lives in rome " * 50)
    for task in ("causal-lm", "masked-lm"):
        with pytest.raises(DataError, match=r"data\.validation\.group: .*long\.txt is one text"):
            load(task, tmp_path, str(tmp_path / "long.txt"), HoldOut(0.2, group=("who",)))


def test_examples_of_one_row_stay_together_on_any_split(tmp_path: Path) -> None:
    table = read_table(write_rows(tmp_path, [row_of(n) for n in range(20)]))
    rows = [n // 3 for n in range(60)]  # three turns of each conversation
    made = make_sides([Examples.of(list(range(60)), table, rows)], 0.3, seed=0)
    sides = [{rows[place] for place in side} for side in (made.places, made.shown)]
    assert not sides[0] & sides[1] and len(made.shown) == 18


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("{group: who}", r"data\.validation\.share: is missing"),
        ("{share: 0.1, group: who, time: at}", "has group and time"),
        ("{share: 1.5, group: who}", r"data\.validation\.share: 1\.5 is not a fraction"),
        ("{share: true, group: who}", r"data\.validation\.share: must be a fraction"),
        ("{share: 0.1, group: []}", r"data\.validation\.group: must be a name of a column"),
        ("{share: 0.1, by: who}", r"data\.validation\.by: there is no such setting"),
        ("{share: 0.1, time: [a]}", r"data\.validation\.time: must be a name of a column"),
    ],
)
def test_a_recipe_says_what_is_wrong_with_it(written: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=message):
        recipe(tmp_path, written)


def recipe(folder: Path, written: str, task: str = "task: tabular-regression\nmodel: mlp") -> Any:
    path = folder / "r.yaml"
    data = f"{{train: rows.csv, label: n, columns: [n], validation: {written}}}"
    path.write_text(f"{task}\ndata: {data}\ntrack: {{mlflow: false}}\n")
    return load_recipe(path)


def test_a_recipe_comes_back_as_it_was_written_and_a_source_may_be_called_group(tmp_path: Path) -> None:
    made = recipe(tmp_path, "{share: 0.1, group: who}")
    assert made.data.held_out == HoldOut(0.1, ("who",)) and made.data.sources == made.data.train_sources
    (tmp_path / "again.yaml").write_text(made.to_yaml())
    assert load_recipe(tmp_path / "again.yaml").data.held_out == made.data.held_out
    assert made.hash() != recipe(tmp_path, "0.1").hash()
    path = tmp_path / "c.yaml"
    path.write_text(
        "task: causal-lm\nmodel: m\ndata: {train: a.txt, validation: {group: b.txt, share: c.txt}}\n"
    )
    assert [Path(each).name for each in load_recipe(path).data.sources] == ["a.txt", "b.txt", "c.txt"]


def test_rows_of_a_task_of_ones_own_are_held_out_by_groups(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("n,who\n" + "".join(f"{n},p{n % 4}\n" for n in range(20)))
    rows = read_training_rows(recipe(tmp_path, "{share: 0.25, group: who}"), lambda row: int(row["n"]), list)
    assert len({n % 4 for n in rows.validation}) == 1 and len(rows.validation) == 5
    assert not {n % 4 for n in rows.train} & {n % 4 for n in rows.validation}


def test_forecasts_hold_out_the_end_of_each_series_alone() -> None:
    columns = SeriesColumns((), "t", "y", (), ())
    with pytest.raises(SettingError, match="of each series the last steps are held out anyway"):
        ForecastSettings(columns, "rows.csv", HoldOut(0.2, group=("store",)))


def test_a_table_does_not_learn_from_the_columns_that_rows_are_held_out_by(tmp_path: Path) -> None:
    rows = [f"{n},p{n % 5},2026-01-{1 + n:02},{n % 2}" for n in range(20)]
    (tmp_path / "t.csv").write_text("\n".join(["a,who,day,label", *rows]))
    for hold_out in (HoldOut(0.2, group=("who", "day")), HoldOut(0.2, time="day")):
        left = {"who"} if hold_out.time else set()
        data = load_table(TableSettings(str(tmp_path / "t.csv"), hold_out))
        assert set(data.format.columns) == {"a"} | left
    with pytest.raises(DataError, match="day"):  # which is no number
        load_table(TableSettings(str(tmp_path / "t.csv"), hold_out, columns=("a", "day")))


@pytest.mark.parametrize("task", ["text-classification", "tabular-classification", "causal-lm", "masked-lm"])
def test_a_group_that_is_in_two_sources_is_on_one_side(task: str, tmp_path: Path) -> None:
    rows = [{**row_of(n), "who": f"p{n % 10}"} for n in range(COUNT)]
    names = {
        name: write_rows(tmp_path, part, f"{name}.jsonl")
        for name, part in (("a", rows[:25]), ("b", rows[25:]))
    }
    sources = sources_of({name: {"from": path, "weight": 1} for name, path in names.items()})
    loaded = load(task, tmp_path, sources, HoldOut(0.2, group=("who",)))
    sides = []
    for side in (loaded.train, loaded.validation):
        places = [side.origin(place).rpartition("/")[2].split(".jsonl:") for place in range(len(side))]
        sides.append({rows[int(line) - 1 + (25 if name == "b" else 0)]["who"] for name, line in places})
    assert not sides[0] & sides[1] and len(sides[1]) == 2
