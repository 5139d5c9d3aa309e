"""Balanced rows: equal parts at every place, all rows of a value before one comes again, epochs as long as without, columns refused."""

from __future__ import annotations

import json
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snugfit.core.job import Job, Train
from snugfit.data.examples import Balance, Examples
from snugfit.data.loader import Loader
from snugfit.data.mixture import Draws, mixed
from snugfit.data.named_sources import Source, Sources, sources_of
from snugfit.data.order import examples_of_epoch, training_order
from snugfit.data.sources import read_table
from snugfit.data.splits.balance import balance_rows
from snugfit.errors import DataError, SettingError, UserError
from snugfit.recipe import load_recipe
from snugfit.run.call_options import RunOptions
from snugfit.run.from_recipe import resume_run, train_recipe
from snugfit.tasks.prepare import prepare
from snugfit.tools.cross_validation.fold_rows import fold_rows
from tests.oracles import mixture as oracle
from tests.unit.data.loaders import LOADERS, load, row_of, write_rows
from tests.unit.tasks.trained_runs import AfterWindows, weights

EPOCHS = 3


def draws_of(values: list[list[str]], parts: list[int] | None = None, *, first: bool = True) -> Draws:
    """The draws of sources whose rows have these values; of one or of several without weights where there are no parts."""
    sizes = [len(own) for own in values]
    starts = [sum(sizes[:n]) for n in range(len(sizes))]
    names = sorted({value for own in values for value in own})
    balance = Balance("kind", tuple(names), np.array([names.index(value) for own in values for value in own]))
    members = [range(start, start + size) for start, size in zip(starts, sizes, strict=True)]
    if len(values) == 1:
        return Draws(None, members, balance)
    each = [
        Source(f"s{n}", f"s{n}.csv", None if parts is None else Fraction(parts[n])) for n in range(len(sizes))
    ]
    return Draws(Sources(tuple(each), "first_exhausted" if first else "all_exhausted"), members, balance)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from("abcd"), min_size=1, max_size=12), min_size=1, max_size=3),
    st.lists(st.integers(1, 5), min_size=3, max_size=3),
    st.booleans(),
    st.booleans(),
)
def test_the_draws_are_those_of_a_plain_loop(
    values: list[list[str]], parts: list[int], first: bool, weighed: bool
) -> None:
    sizes = [len(own) for own in values]
    if len(values) > 1 and not weighed:  # every value over all sources together
        draws = draws_of(values)
        values, sizes = [[value for own in values for value in own]], [sum(sizes)]
        turns = [0] * sizes[0]
    elif len(values) > 1:
        draws = draws_of(values, parts, first=first)
        turns = oracle.one_epoch(sizes, [Fraction(part) for part in parts[: len(values)]], first=first)
    else:
        draws, turns = draws_of(values), [0] * sizes[0]
    assert len(draws) == len(turns)
    for epoch, expected in enumerate(oracle.balanced(values, turns, EPOCHS)):
        passes, places = draws.epoch(seed=0, number=epoch, shuffle=False)
        assert list(zip(passes.tolist(), places.tolist(), strict=True)) == [
            (again, sum(sizes[:source]) + row) for source, again, row in expected
        ]


def test_values_have_equal_parts_at_every_place_and_all_rows_come_before_one_comes_again() -> None:
    values = ["a"] * 30 + ["b"] * 9 + ["c"] * 2
    draws = draws_of([values])
    assert len(draws) == 41
    given_out: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    orders = set()
    for epoch in range(6):
        _, places = draws.epoch(seed=5, number=epoch)
        orders.add(tuple(places.tolist()))
        for place in range(1, 42):
            counts = Counter(values[each] for each in places[:place])
            assert max(counts.values()) - min(counts[name] for name in "abc") <= 1
        for each in places.tolist():
            given_out[values[each]].append(each)
    assert len(orders) == 6, "each epoch has an order of its own"
    for name, rows in given_out.items():
        own = values.count(name)
        for start in range(0, len(rows) - own + 1, own):
            assert len({*rows[start : start + own]}) == own
    assert draws.epoch(seed=5, number=2)[1].tolist() != draws.epoch(seed=6, number=2)[1].tolist()


def test_counts_by_value_and_by_source_are_those_of_the_run() -> None:
    values = [["a", "a", "b"], ["a", "b", "b", "b"], ["c", "a"]]
    draws = draws_of(values, [3, 1, 1], first=False)
    names = [value for own in values for value in own]
    sources = [n for n, own in enumerate(values) for _ in own]
    count = 2 * len(draws) + 3
    run = np.concatenate([draws.epoch(seed=1, number=epoch)[1] for epoch in range(3)])[:count].tolist()
    by_value = Counter(names[place] for place in run)
    assert [(each["name"], each["share"]) for each in draws.by_value(count)] == [
        (name, by_value[name] / count) for name in "abc"
    ]
    by_source = Counter(sources[place] for place in run)
    assert draws.counts_after(count) == tuple(by_source[n] for n in range(3))


@pytest.mark.parametrize("first", [True, False])
def test_a_value_whose_turn_never_comes_is_refused_and_all_others_come(first: bool, tmp_path: Path) -> None:
    """Epochs of four rows of one source have one of the other, whose values are two."""
    kinds = {"big": ["a", "b"] * 2, "small": ["a"] * 5 + ["b"] * 5}
    written = {}
    for name, own in kinds.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(f"{json.dumps({'kind': kind})}\n" for kind in own))
        written[name] = {"from": f"{name}.jsonl", "weight": 3 if name == "big" else 1}
    sources = sources_of(written, "first_exhausted" if first else "all_exhausted")
    table = read_table(sources, folder=tmp_path)
    examples = Examples.of(list(range(14)), table, range(14))
    if first:
        with pytest.raises(DataError, match=r"data\.balance: rows of small with 'b' would never come"):
            balance_rows(examples, "kind")
        return
    balance_rows(examples, "kind")
    draws = mixed(examples)
    assert draws is not None
    assert {place for epoch in range(2) for place in draws.epoch(0, epoch)[1].tolist()} == set(range(14))


def rows_of(folder: Path, kinds: list[Any]) -> Examples:
    (folder / "r.jsonl").write_text("".join(f"{json.dumps({'kind': kind})}\n" for kind in kinds))
    table = read_table(str(folder / "r.jsonl"))
    return Examples.of([{"x": n} for n in range(len(kinds))], table, range(len(kinds)))


def test_windows_of_a_loader_are_balanced_and_a_part_taken_before_stays_so(tmp_path: Path) -> None:
    examples = rows_of(tmp_path, ["yes"] * 3 + ["no"] * 21)
    assert balance_rows(examples, "kind") == []
    assert mixed(examples.at(range(2, 10))).by_value(8)[1] == {
        "name": "yes",
        "rows": 1,
        "share": 0.5,
        "epochs": 4.0,
    }
    order = training_order(Job(Train(epochs=2, global_batch=6)), examples)
    assert (order.windows, examples_of_epoch(examples)) == (8, 24)
    for window in Loader(examples, order).windows(0, 8):
        assert Counter(row < 3 for row in window.ids) == {True: 3, False: 3}


def test_rows_that_come_often_are_said(tmp_path: Path) -> None:
    examples = rows_of(tmp_path, ["rare"] + ["usual"] * 99)
    (warning,) = balance_rows(examples, "kind")
    assert warning == (
        "balanced by kind, each row of rare (1 row, 50 times) comes that often in an epoch: it may be learned by heart."
    )


@pytest.mark.parametrize(
    ("kinds", "column", "message"),
    [
        (["a", "b"], "sort", r"data\.balance: .*r\.jsonl has no column 'sort'"),
        (["a", "a"], "kind", "all rows to train on have kind 'a'"),
        (["a", None, "b"], "kind", r"r\.jsonl:2: the row has no kind"),
        (["a", "  "], "kind", r"r\.jsonl:2: the row has no kind"),
        ([1.5, 2.5, 3.5], "kind", "'kind' has 3 values in 3 rows"),
    ],
)
def test_columns_that_cannot_be_balanced_are_refused(
    kinds: list[Any], column: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match=message):
        balance_rows(rows_of(tmp_path, kinds), column)


@pytest.mark.parametrize("task", LOADERS)
def test_examples_of_every_task_are_balanced_by_a_column_of_their_rows(task: str, tmp_path: Path) -> None:
    path = write_rows(
        tmp_path, [{**row_of(n), "site": "north" if n % 6 == 5 else "south"} for n in range(24)]
    )
    train = load(task, tmp_path, path, 0.25).train
    if task == "causal-lm":
        with pytest.raises(DataError, match="blocks of text"):
            balance_rows(train, "site")
        return
    balance_rows(train, "site")
    draws = mixed(train)
    assert draws is not None
    north = {place for place in range(len(train)) if _number(train, place) % 6 == 5}
    _, places = draws.epoch(seed=0, number=0)
    assert abs(2 * sum(place in north for place in places.tolist()) - len(places)) <= 1 and len(north) < 8


def _number(examples: Examples, place: int) -> int:
    origin = examples.origin(place)
    return int(Path(origin).stem) if origin.endswith(".png") else int(origin.rpartition(":")[2]) - 1


RECIPE = """\
name: sick
task: tabular-classification
model: mlp
data: {train: rows.csv, label: ill, columns: [age], validation: 0.25, balance: ward}
train: {updates: 6, global_batch: 8}
plan: {device: cpu, numerics: fp32}
track: {mlflow: false}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = [f"{n},{'north' if n % 8 == 0 else 'south'},{'yes' if n % 3 else 'no'},{n % 2}" for n in range(48)]
    (tmp_path / "rows.csv").write_text("\n".join(["age,ward,ill,sex", *rows]) + "\n")
    (tmp_path / "sick.yaml").write_text(RECIPE)
    return tmp_path


def test_a_run_says_what_is_balanced_and_goes_on_with_the_same_rows(project: Path) -> None:
    events: list[dict[str, Any]] = []
    recipe = load_recipe("sick.yaml")
    whole = train_recipe(recipe, RunOptions(plan=False), events.append)
    (run,) = [event for event in events if event["event"] == "run"]
    assert run["data"]["balanced_by"] == "ward"
    assert [(each["name"], each["share"]) for each in run["data"]["balanced"]] == [
        ("north", 0.5),
        ("south", 0.5),
    ]
    assert "ward north" in (Path(whole.run_dir) / "report.html").read_text()
    stopped = train_recipe(recipe, RunOptions(plan=False, stop=AfterWindows(3)))
    assert stopped.status == "stopped"
    ended = resume_run(Path(stopped.run_dir), RunOptions(plan=False))
    own, other = weights(Path(ended.run_dir)), weights(Path(whole.run_dir))
    assert own.keys() == other.keys() and all(own[name].equal(value) for name, value in other.items())
    changed = Path(stopped.run_dir) / "recipe.yaml"
    changed.write_text(changed.read_text().replace("balance: ward", "balance: sex"))
    with pytest.raises(UserError, match="data balance"):
        resume_run(Path(stopped.run_dir), RunOptions(plan=False))


def test_folds_have_the_column_that_they_are_balanced_by(project: Path) -> None:
    recipe = load_recipe("sick.yaml")
    assert set(fold_rows(recipe).records[0]) == {"age", "ill", "ward", "snugfit.origin"}
    (project / "steps.yaml").write_text("task: forecasting\nmodel: mlp\ndata: {train: a.csv, balance: b}\n")
    with pytest.raises(SettingError, match=r"data\.balance: is not used by task forecasting"):
        load_recipe("steps.yaml")


def test_rows_are_forgotten_once_they_are_balanced(project: Path) -> None:
    task = prepare(load_recipe("sick.yaml"))
    assert task.material.train.rows.table is None and task.material.validation.rows.table is None
