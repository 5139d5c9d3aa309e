"""Inputs on both sides of a split: counted with file and line, refused or dropped, also where labels differ, for every task."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from snugfit.cli import main
from snugfit.data.splits.hold_out import HoldOut
from snugfit.data.splits.leaks import LeakSettings
from snugfit.data.texts.labelled_texts import TextSettings, load_text
from snugfit.errors import DataError, SettingError
from snugfit.recipe import load_recipe
from snugfit.tasks.rows import read_training_rows
from tests.unit.data.conftest import word_tokenizer
from tests.unit.data.loaders import LOADERS, load, numbers_of, row_of, write_rows

COMPARED = [task for task in LOADERS if task != "causal-lm"]


def two_files(folder: Path) -> tuple[str, str]:
    """Write rows to train on, of which 3, 8 and 8 again are held out too, with other answers, and the rows to validate on."""
    rows = [row_of(n) for n in range(12)]
    rows.append({**row_of(8), "label": "no", "target": "bob", "completion": "who knows", "chosen": "hm"})
    held_out = [row_of(n) for n in (20, 3, 8, 21)]
    for row in held_out:
        row |= {"label": "yes", "target": "york", "completion": "it depends", "chosen": "perhaps"}
    return write_rows(folder, rows, "train.jsonl"), write_rows(folder, held_out, "held.jsonl")


@pytest.mark.parametrize("task", COMPARED)
def test_an_input_on_both_sides_is_counted_and_named_whatever_its_label(task: str, tmp_path: Path) -> None:
    train, held_out = two_files(tmp_path)
    loaded = load(task, tmp_path, train, held_out)
    (warning,) = [each for each in loaded.warnings if "trained on" in each]
    assert warning.startswith("2 of 4 validation ") and "their scores say nothing new" in warning
    if "pictures" in warning:
        assert re.search(
            r"pictures/3.png is \S*pictures/3.png, \S*pictures/8.png is \S*pictures/8.png\)", warning
        )
    else:
        assert re.search(
            r"\(\S*held\.jsonl:2 is \S*train\.jsonl:4, \S*held\.jsonl:3 is \S*train\.jsonl:9\)", warning
        )
    assert len(loaded.train) == 13


@pytest.mark.parametrize("task", COMPARED)
def test_dropping_leaves_every_copy_out_of_training_and_failing_ends_the_run(
    task: str, tmp_path: Path
) -> None:
    train, held_out = two_files(tmp_path)
    loaded = load(task, tmp_path, train, held_out, LeakSettings("drop"))
    assert numbers_of(loaded.train) == set(range(12)) - {3, 8}
    assert len(loaded.train) == 10 and len(loaded.validation) == 4
    (warning,) = [each for each in loaded.warnings if "trained on" in each]
    assert warning.endswith(": 3 rows left out of training (data.leaks: drop).")
    with pytest.raises(DataError, match=r"^data\.validation: 2 of 4 validation .* are also trained on"):
        load(task, tmp_path, train, held_out, LeakSettings("fail"))


def test_rows_of_a_corpus_are_compared_before_they_are_joined(tmp_path: Path) -> None:
    train, held_out = two_files(tmp_path)
    loaded = load("causal-lm", tmp_path, train, held_out, LeakSettings("drop"))
    assert any("2 of 4 validation texts" in each for each in loaded.warnings)
    without = write_rows(tmp_path, [row_of(n) for n in range(12) if n not in (3, 8)], "less.jsonl")
    assert list(loaded.train) == list(load("causal-lm", tmp_path, without, held_out).train)


@pytest.mark.parametrize("task", COMPARED)
def test_sides_of_one_file_are_compared_too(task: str, tmp_path: Path) -> None:
    rows = [row_of(n) for n in range(10)]
    copies = [{**row_of(n), "when": 2} for n in (4, 7)]
    path = write_rows(tmp_path, [*({**row, "when": 1} for row in rows), *copies])
    loaded = load(task, tmp_path, path, HoldOut(0.2, time="when"), LeakSettings("drop"))
    assert len(loaded.train) == 8 and len(loaded.validation) == 2
    assert any("2 of 2 validation" in each for each in loaded.warnings)


def nearly(row: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return a row with nearly the same input."""
    with Image.open(folder / row["image"]) as picture:
        picture.resize((32, 32)).save(folder / "pictures/again.jpg", quality=90)
    text = f"{row['text'].upper()}!"
    return {
        **row,
        "text": text,
        "positive": f"{text} AND",
        "prompt": text,
        "a": row["a"] + 1e-6,
        "words": [word.upper() for word in row["words"]],
        "image": "pictures/again.jpg",
    }


@pytest.mark.parametrize(
    "task", [task for task in COMPARED if task not in ("contrastive-pretraining", "segmentation")]
)
def test_nearly_equal_inputs_leak_where_that_is_asked_for(task: str, tmp_path: Path) -> None:
    rows = [row_of(n) for n in range(0, 900, 91)]
    train = write_rows(tmp_path, rows, "train.jsonl")
    held_out = write_rows(tmp_path, [row_of(n) for n in (111, 222)], "held.jsonl")
    with Path(held_out).open("a") as file:
        file.write(f"{json.dumps(nearly(rows[3], tmp_path))}\n")
    exact = load(task, tmp_path, train, held_out)
    assert not any("nearly equal" in each for each in exact.warnings)
    loaded = load(task, tmp_path, train, held_out, LeakSettings("drop", near=True))
    assert len(loaded.train) == 9, loaded.warnings
    (warning,) = [each for each in loaded.warnings if "nearly equal" in each]
    assert "1 of 3 validation" in warning and "is like" in warning


def test_a_class_that_would_lose_all_its_rows_and_a_set_that_would_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\ngood film,x\nbad film,y\nbad book,y\n")
    (tmp_path / "b.csv").write_text("text,label\ngood film,x\na book,y\n")
    sides = (str(tmp_path / name) for name in ("a.csv", "b.csv"))
    settings = TextSettings(next(sides), validation=next(sides), max_length=16, leaks=LeakSettings("drop"))
    with pytest.raises(DataError, match="all rows of 'x' are among those to validate on"):
        load_text(settings, word_tokenizer())
    (tmp_path / "b.csv").write_text((tmp_path / "a.csv").read_text())
    with pytest.raises(DataError, match="no row is left to train on"):
        load_text(settings, word_tokenizer())


def test_rows_of_a_task_of_ones_own_are_compared_by_what_they_encode_to(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("n,y\n1,2\n3,4\n5,6\n")
    (tmp_path / "held.csv").write_text("n,y\n3,9\n7,8\n")
    path = tmp_path / "r.yaml"

    def read(**data: Any) -> Any:
        own = "".join(f", {name}: {value}" for name, value in data.items())
        path.write_text(
            "task: tabular-regression\nmodel: mlp\n"
            f"data: {{train: rows.csv, label: y, columns: [n], validation: held.csv{own}}}\n"
        )
        return read_training_rows(
            load_recipe(path), lambda row: {"n": float(row["n"]), "labels": float(row["y"])}, list
        )

    (message,) = read().messages
    assert message.startswith("1 of 2 validation rows are also trained on (")
    assert [each["n"] for each in read(leaks="drop").train] == [1.0, 5.0]
    with pytest.raises(
        SettingError, match=r"data\.near_duplicates: is true, and rows are compared as they are"
    ):
        read(near_duplicates="true")


def test_tasks_that_compare_no_rows_have_no_such_setting(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("task: python\nmodel: m:f\ndata: {train: m:g, leaks: drop}\n")
    with pytest.raises(SettingError, match=r"data\.leaks"):
        load_recipe(path, allow_code=True)


def test_a_test_set_is_compared_by_the_doctor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"{n},{n % 2}" for n in range(20)]
    for name, own in (("rows", rows), ("test", ["3,0", "40,1"]), ("other", ["41,0", "42,1"])):
        (tmp_path / f"{name}.csv").write_text("\n".join(["a,label", *own]) + "\n")
    path = tmp_path / "r.yaml"
    path.write_text(
        "task: tabular-classification\nmodel: mlp\ndata: {train: rows.csv}\ntrack: {mlflow: false}\n"
    )
    command = ["doctor", str(path), "data.leaks=fail"]
    assert main([*command, f"data.validation={tmp_path / 'test.csv'}"]) == 2
    assert re.search(
        r"1 of 2 validation rows are also trained on \(test.csv:2 is rows.csv:5\)",
        capsys.readouterr().err,
    )
    assert main([*command, f"data.validation={tmp_path / 'other.csv'}"]) == 0
