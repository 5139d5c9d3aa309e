"""Sources by name: what may be written, what is refused, and what a recipe keeps of it."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from snugfit.data.named_sources import Sources, files_of, sources_of, texts_in, with_files
from snugfit.data.sources import read_table
from snugfit.errors import DataError, SettingError
from snugfit.recipe import Recipe, load_recipe


def sources(written: Any, stopping: Any = "first_exhausted") -> Sources:
    made = sources_of(written, stopping)
    assert isinstance(made, Sources)
    return made


def test_a_weight_is_the_number_that_is_written() -> None:
    made = sources({"a": {"from": "a.csv", "weight": 0.1}, "b": {"from": "b.csv", "weight": 3}})
    assert made.weights == (Fraction(1, 10), Fraction(3))


def test_a_list_has_no_weights_and_the_names_of_its_files() -> None:
    made = sources(("/x/a.csv", "/y/b.csv", "hf://o/n:test"))
    assert (made.names, made.weights) == (("a.csv", "b.csv", "hf://o/n:test"), None)
    assert sources(("/x/a.csv", "/y/a.csv")).names == ("/x/a.csv", "/y/a.csv")


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ({"a": {"from": "a", "weight": 0}}, r"data\.train\.a\.weight: must be a positive number, found 0"),
        ({"a": {"from": "a", "weight": True}}, r"a\.weight: must be a positive number"),
        ({"a": {"from": "a", "weight": float("inf")}}, r"a\.weight: must be a positive number"),
        (
            {"a": {"from": "a", "weight": 1}, "b": "b"},
            r"data\.train\.b\.weight: is missing, and other sources have a weight",
        ),
        ({"a": {"from": "a", "wieght": 1}}, r"data\.train\.a\.wieght: there is no .*Did you mean 'weight'"),
        ({"a": {"weight": 1}}, r"data\.train\.a\.from: is missing"),
        ({"a": {"from": 3}}, r"data\.train\.a\.from: must be the name of a file or data set, found 3"),
        ({"a": {"from": " "}}, r"data\.train\.a\.from: must be"),
        ({"a": 3}, r"data\.train\.a: must be a source, found 3"),
        ({"a": {"from": "a", "rename": ["x"]}}, r"data\.train\.a\.rename: must be new names of columns"),
        ({"a b": "a"}, r"'a b' is no name of a source"),
        ({"from": "a.csv", "weight": 2}, r"has the settings of a source and not its name"),
        ({"a": "x.csv", "b": "x.csv"}, r"names x\.csv twice"),
        ((), r"data\.train: has no source"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_its_setting(written: Any, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        sources_of(written)


@pytest.mark.parametrize("written", ["a.csv", ("a.csv", "b.csv"), {"a": "a.csv", "b": "b.csv"}])
def test_an_end_of_epochs_is_refused_where_every_row_comes_once(written: Any) -> None:
    with pytest.raises(
        SettingError, match=r"data\.stopping_strategy: is all_exhausted, and data\.train has no"
    ):
        sources_of(written, "all_exhausted")


def test_rows_to_validate_on_have_no_weights() -> None:
    made = sources_of({"a": "a.csv", "b": "b.csv"}, setting="data.validation")
    assert isinstance(made, Sources)
    assert made.names == ("a", "b")
    with pytest.raises(
        SettingError, match=r"data\.validation\.a\.weight: is given, and every row to validate on"
    ):
        sources_of({"a": {"from": "a.csv", "weight": 1}}, setting="data.validation")


def test_names_of_files_are_changed_where_they_stand() -> None:
    written = {"a": {"from": "a.csv", "rename": {"a.csv": "x"}}, "b": "b.csv", "c": 3}
    assert list(texts_in(written)) == ["a.csv", "b.csv"]
    changed = with_files(written, {"a.csv": "/a.csv", "b.csv": "/b.csv"})
    assert changed == {"a": {"from": "/a.csv", "rename": {"a.csv": "x"}}, "b": "/b.csv", "c": 3}
    assert files_of({"a": changed["a"], "b": changed["b"]}) == ("/a.csv", "/b.csv")


def test_rows_of_sources_follow_one_another_and_keep_their_places(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,n\none,1\ntwo,2\n")
    (tmp_path / "b.jsonl").write_text('{"body": "three"}\nno json\n{"body": "four", "more": 5}\n')
    made = sources({"a": "a.csv", "b": {"from": "b.jsonl", "rename": {"body": "text"}}})
    table = read_table(made, setting="data.train", folder=tmp_path)
    assert [row["text"] for row in table.rows] == ["one", "two", "three", "four"]
    assert [table.place(row) for row in range(4)] == [
        ("a.csv", 2),
        ("a.csv", 3),
        ("b.jsonl", 1),
        ("b.jsonl", 3),
    ]
    assert [fault.place for fault in table.faults] == ["b.jsonl:2"]
    alone = {name: read_table(name, folder=tmp_path).sha256 for name in ("a.csv", "b.jsonl")}
    assert table.fingerprints == alone


@pytest.mark.parametrize(
    ("rename", "message"),
    [
        ({"txet": "x"}, r"data\.train\.a\.rename: a\.csv has no column 'txet'. Did you mean 'text'"),
        ({"n": "text"}, r"data\.train\.a\.rename: two columns of a\.csv would be called 'text'"),
    ],
)
def test_columns_that_cannot_be_renamed_are_refused(
    tmp_path: Path, rename: dict[str, str], message: str
) -> None:
    (tmp_path / "a.csv").write_text("text,n\none,1\n")
    made = sources({"a": {"from": "a.csv", "rename": rename}})
    with pytest.raises(DataError, match=message):
        read_table(made, setting="data.train", folder=tmp_path)


def recipe(folder: Path, *changes: str, data: str = "", task: str = "tabular-classification") -> Recipe:
    given = data or "{train: {a: {from: a.csv, weight: 3}, b: {from: b.csv, weight: 1}}}"
    path = folder / "mixed.yaml"
    path.write_text(f"name: mixed\ntask: {task}\nmodel: tabm\ndata: {given}\ntrack: {{mlflow: false}}\n")
    return load_recipe(path, changes)


def test_a_recipe_keeps_its_sources_and_finds_their_files_in_its_folder(tmp_path: Path) -> None:
    loaded = recipe(tmp_path)
    assert loaded.data.train_sources == (str(tmp_path / "a.csv"), str(tmp_path / "b.csv"))
    (tmp_path / "copy.yaml").write_text(loaded.to_yaml())
    copy = load_recipe(tmp_path / "copy.yaml")
    assert copy.data == loaded.data
    assert copy.hash() == loaded.hash()
    assert recipe(tmp_path, data="[a.csv, b.csv]".join(("{train: ", "}"))).data.train == (
        str(tmp_path / "a.csv"),
        str(tmp_path / "b.csv"),
    )


def test_a_weight_and_the_end_of_an_epoch_decide_what_is_learned(tmp_path: Path) -> None:
    hashes = {
        recipe(tmp_path, *changes).hash()
        for changes in ((), ("data.train.a.weight=2",), ("data.stopping_strategy=all_exhausted",))
    }
    assert len(hashes) == 3
    assert "stopping_strategy" not in recipe(tmp_path, data="{train: a.csv}").learned()["data"]


def test_an_error_in_a_source_names_the_line_of_the_recipe(tmp_path: Path) -> None:
    with pytest.raises(
        SettingError, match=r"mixed\.yaml:4: data\.train\.a\.weight: must be a positive number"
    ):
        recipe(tmp_path, data="{train: {a: {from: a.csv, weight: none}, b: {from: b.csv, weight: 1}}}")
    with pytest.raises(SettingError, match=r"override 'data\.train\.a\.weight=-1': data\.train\.a\.weight"):
        recipe(tmp_path, "data.train.a.weight=-1")


def test_a_task_that_reads_one_source_refuses_several(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"names several sources, and task image-classification reads one"):
        recipe(tmp_path, data="{train: [a, b]}", task="image-classification")
