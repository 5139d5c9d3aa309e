"""Rows to train on and to validate on: a fraction held out by the seed, a file of its own, or none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from snugfit.data.bad_rows import BadRow
from snugfit.recipe import load_recipe
from snugfit.tasks.rows import TrainingRows, read_training_rows


def encode(row: Any) -> int:
    if row["n"] == "x":
        raise BadRow("no number", "has none")
    return int(row["n"])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.csv").write_text("n\n" + "".join(f"{n}\n" for n in range(8)) + "x\n")
    (tmp_path / "held.csv").write_text("n\n10\n11\nx\n")
    return tmp_path


def read(folder: Path, validation: str) -> TrainingRows:
    path = folder / "r.yaml"
    data = f"{{train: train.csv, label: n, columns: [n], bad_rows: skip, validation: {validation}}}"
    path.write_text(f"task: tabular-regression\nmodel: mlp\ndata: {data}\ntrack: {{mlflow: false}}\n")
    return read_training_rows(load_recipe(path), encode, list)


def test_a_fraction_is_held_out_by_the_seed(folder: Path) -> None:
    rows, again = read(folder, "0.25"), read(folder, "0.25")
    assert sorted([*rows.train, *rows.validation]) == list(range(8)) and len(rows.validation) == 2
    assert [*again.validation] == [*rows.validation]
    assert rows.data == {"train": 6, "validation": 2, "skipped": {"no number": 1}}
    assert [Path(each).name for each in rows.fingerprints] == ["train.csv"]


def test_a_file_is_read_as_the_other_one_and_none_is_none(folder: Path) -> None:
    rows = read(folder, "held.csv")
    assert ([*rows.train], [*rows.validation]) == (list(range(8)), [10, 11])
    assert rows.data["skipped"] == {"no number": 2} and len(rows.fingerprints) == 2
    alone = read(folder, "null")
    assert alone.validation is None and alone.data["validation"] == 0
