"""Labels of which a row has any number: their forms, what is refused, and how rare ones are split."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from snugfit.data.bad_rows import BadRow
from snugfit.data.labels.label_sets import LabelSets
from snugfit.data.texts.labelled_texts import TextData, TextSettings, load_text
from snugfit.errors import DataError, SettingError
from snugfit.models.tokenizer import load_tokenizer
from tests.unit.tasks.tiny_encoder import write_encoder


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_encoder(tmp_path / "encoder")
    return tmp_path


def loaded(rows: list[Mapping[str, Any]], sets: LabelSets | None = None, **others: Any) -> TextData:
    Path("rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given: dict[str, Any] = {"train": "rows.jsonl", "validation": None, "max_length": 16, **others}
    return load_text(
        TextSettings(label=sets or LabelSets("labels"), **given), load_tokenizer("./encoder", folder=Path())
    )


@pytest.mark.parametrize(
    ("cell", "names"),
    [
        (["b", "a"], ("b", "a")),
        (["a", "a "], ("a",)),
        ([], ()),
        ("", ()),
        ("a", ("a",)),
        ("b; a;", ("b", "a")),
        ('["a;b", "c"]', ("a;b", "c")),
        ("[]", ()),
        ([3, 1], ("3", "1")),
        (3, ("3",)),
    ],
)
def test_a_cell_lists_the_labels_of_its_row(cell: Any, names: tuple[str, ...]) -> None:
    assert LabelSets("y").of({"y": cell})[1] == names


def test_labels_are_told_apart_by_the_separator_that_is_set() -> None:
    assert LabelSets("y", separator="|").of({"y": "a;b|c"})[1] == ("a;b", "c")
    assert LabelSets("y", separator=" ").of({"y": "3  17"})[1] == ("3", "17")


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({}, "missing label"),
        ({"y": None}, "missing label"),
        ({"y": float("nan")}, "missing label"),
        ({"y": ["a", ""]}, "missing label"),
        ({"y": ["a", None]}, "missing label"),
        ({"y": ["a", 1]}, "mixed label types"),
        ({"y": {"a": 1}}, "unusable label"),
        ({"y": [1.5]}, "unusable label"),
        ({"y": "[a"}, "unusable label"),
    ],
)
def test_a_cell_that_lists_no_labels_is_a_fault(row: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadRow) as fault:
        LabelSets("y").of(row)
    assert fault.value.reason == reason


@pytest.mark.parametrize("one", [1, "1", 1.0, True, "True", "true"])
@pytest.mark.parametrize("none", [0, "0", 0.0, False, "False"])
def test_columns_of_0_and_1_are_labels_by_their_names(one: Any, none: Any) -> None:
    sets = LabelSets(columns=("sad", "rude"))
    assert sets.of({"rude": one, "sad": none, "label": "x"}) == ("text", ("rude",))
    assert sets.of({"rude": none, "sad": none}) == ("", ())
    assert sets.names_in([]) == ("sad", "rude")


@pytest.mark.parametrize(
    ("cell", "reason"), [("", "missing label"), (-1, "unusable label"), ("yes", "unusable label")]
)
def test_a_column_with_something_else_than_0_and_1_is_a_fault(cell: Any, reason: str) -> None:
    with pytest.raises(BadRow) as fault:
        LabelSets(columns=("rude",)).of({"rude": cell})
    assert fault.value.reason == reason


def test_an_example_has_1_or_0_for_each_label_that_there_is(project: Path) -> None:
    data = loaded(
        [
            {"text": "good film", "labels": ["b", "c"]},
            {"text": "bad film", "labels": []},
            {"text": "film", "labels": ["a"]},
        ]
    )
    assert data.labels == ("a", "b", "c") and data.report.labels == {"a": 1, "b": 1, "c": 1}
    assert [example["labels"] for example in data.train] == [[0, 1, 1], [0, 0, 0], [1, 0, 0]]
    batch = data.collate([data.train[0], data.train[1]])
    assert batch["labels"].dtype.is_floating_point and batch["labels"].tolist() == [[0, 1, 1], [0, 0, 0]]


def test_rows_of_no_labels_are_of_no_kind_and_rows_of_another_kind_are_faults(project: Path) -> None:
    rows = [{"text": "film", "labels": each} for each in ([], [], [], ["a"], ["b"], [1])]
    with pytest.raises(DataError, match=r"rows.jsonl:6: the label 1 is a whole number, most labels are text"):
        loaded(rows)
    data = loaded(rows, bad_rows="skip")
    assert len(data.train) == 5 and data.report.skipped == {"mixed label types": 1}


def test_a_rare_label_is_in_the_rows_to_train_on_whatever_the_seed(project: Path) -> None:
    rows = [{"text": f"film {at}", "labels": ["a", *(["rare"] if at in (3, 17) else [])]} for at in range(40)]
    for seed in range(12):
        data = loaded(rows, validation=0.75, seed=seed)
        assert data.report.labels["rare"] == 1 and len(data.validation) == 30
        assert any("'rare' (1)" in warning for warning in data.report.warnings)


def test_a_label_of_rows_to_validate_on_alone_is_a_fault_and_may_be_named(project: Path) -> None:
    Path("held.jsonl").write_text('{"text": "film", "labels": ["a", "new"]}\n')
    rows = [{"text": "film", "labels": ["a"]}] * 6
    with pytest.raises(DataError, match=r"held.jsonl:1: the label 'new' was not trained"):
        loaded(rows, validation="held.jsonl")
    data = loaded(rows, LabelSets("labels", names=("a", "new")), validation="held.jsonl")
    assert data.labels == ("a", "new") and data.validation[0]["labels"] == [1, 1]
    with pytest.raises(DataError, match=r"rows.jsonl:1: the label 'a' is not among data.classes"):
        loaded(rows, LabelSets("labels", names=("b",)))


def test_rows_without_any_label_and_settings_that_contradict_are_refused(project: Path) -> None:
    with pytest.raises(DataError, match=r"data.label: no usable row of rows.jsonl has a label"):
        loaded([{"text": "film", "labels": []}] * 3)
    with pytest.raises(SettingError, match=r"data.separator: is empty"):
        LabelSets(separator="")
    with pytest.raises(SettingError, match=r"data.classes: names labels that data.label_columns names too"):
        LabelSets(columns=("a",), names=("b",))
