"""Rows that were left out are written with file, line, reason and what they hold, by every task, and said at the end of a run."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from snugfit.cli import main
from snugfit.data.bad_rows import BadRow, Fault, left_out_rows, settle
from snugfit.data.quarantine import MOST_CHARACTERS, quarantine_text
from snugfit.data.sources import read_table
from snugfit.errors import DataError
from snugfit.results.run_folder import QUARANTINE
from tests.unit.data.loaders import LOADERS, row_of, write_rows


def entries(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_row_that_was_read_has_its_columns_and_one_that_was_not_the_text_of_its_line(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'text,label\ngood,x\n,y\none,two,three\ncaf\xe9,z\n"open,x\n')
    table = read_table(str(path))
    faults = [*table.faults, table.fault(1, BadRow("empty text", "text is empty"))]
    made = {entry["line"]: entry for entry in entries(quarantine_text(faults))}
    assert made[3] == {
        "file": str(path),
        "line": 3,
        "reason": "empty text",
        "detail": "text is empty",
        "row": {"text": "", "label": "y"},
    }
    assert made[4]["row"] == "one,two,three" and made[4]["reason"] == "ragged row"
    assert made[5]["row"] == "caf\\xe9,z" and made[5]["reason"] == "not UTF-8"
    assert made[6]["row"] == '"open,x'


def test_large_rows_and_those_that_cannot_be_had_any_more_are_not_written(tmp_path: Path) -> None:
    long = tmp_path / "a.jsonl"
    long.write_text("{" + "x" * MOST_CHARACTERS + "\n{short\n")
    faults = [
        Fault(str(long), 1, "broken JSON", ""),
        Fault(str(long), 2, "broken JSON", ""),
        Fault("gone.csv", 2, "ragged row", ""),
        Fault("photos/1.png", 0, "empty picture", "is empty"),
        Fault("m:f", 3, "empty text", "", {"text": "x" * MOST_CHARACTERS}),
        Fault("m:f", 4, "empty text", "", {"text": " ", "when": Path("a")}),
    ]
    made = entries(quarantine_text(faults))
    assert [entry["row"] for entry in made] == [None, "{short", None, None, None, {"text": " ", "when": "a"}]
    assert made[3]["line"] is None


def test_rows_are_listed_where_they_are_left_out_and_nowhere_else() -> None:
    fault = Fault("a.csv", 2, "empty text", "text is empty")
    with left_out_rows() as faults:
        settle([fault], "skip")
        with pytest.raises(DataError):
            settle([fault], "fail")
        with left_out_rows() as inner:
            settle([fault, fault], "skip")
    settle([fault], "skip")
    assert (faults, len(inner)) == ([fault], 2)


BAD: dict[str, dict[str, Any]] = {
    **{key: {"text": ""} for key in ("text-classification", "causal-lm", "masked-lm", "seq2seq")},
    **{key: {"text": " "} for key in ("sentence-embedding", "instruction")},
    "text-regression": {"a": "many"},
    "preference": {"chosen": ""},
    "token-classification": {"tags": ["O"]},
    "tabular-classification": {"label": ""},
    **{key: {"image": "nowhere.png"} for key in ("image-classification", "contrastive-pretraining")},
    "segmentation": {"mask": "nowhere.png"},
}


@pytest.mark.parametrize("task", LOADERS)
def test_every_task_lists_the_rows_that_it_leaves_out(task: str, tmp_path: Path) -> None:
    path = Path(write_rows(tmp_path, [row_of(n) for n in range(24)]))
    with path.open("a") as file:
        file.write(f"{json.dumps({**row_of(24), **BAD[task]})}\n{{broken\n")
    with left_out_rows() as faults:
        data = LOADERS[task](
            tmp_path, {"train": str(path), "validation": 0.25, "seed": 3, "bad_rows": "skip"}
        )
    assert Counter(fault.reason for fault in faults) == Counter(data.report.skipped)
    by_line = {entry["line"]: entry for entry in entries(quarantine_text(faults))}
    assert set(by_line) == {25, 26} and by_line[26]["row"] == "{broken"
    row = by_line[25]["row"]
    row = json.loads(row) if isinstance(row, str) else row
    assert {name: row[name] for name in BAD[task]} == BAD[task]


RECIPE = """\
name: sick
task: tabular-classification
model: mlp
data: {train: rows.csv, label: ill, bad_rows: skip}
train: {updates: 4, global_batch: 8}
evaluate: {every: 2}
plan: {device: cpu, numerics: fp32}
track: {mlflow: false}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rows = [f"{n},{'yes' if n % 3 else 'no'}" for n in range(30)]
    (tmp_path / "rows.csv").write_text("\n".join(["age,ill", *rows, "31,", "many,yes", "1,2,3"]) + "\n")
    (tmp_path / "sick.yaml").write_text(RECIPE)
    return tmp_path


def test_a_run_writes_them_and_says_where(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "sick.yaml", "--no-plan"]) == 0
    (folder,) = (project / "runs/sick").iterdir()
    made = entries((folder / QUARANTINE).read_text())
    assert [(entry["line"], entry["reason"]) for entry in made] == [
        (32, "missing label"),
        (33, "not a number"),
        (34, "ragged row"),
    ]
    assert f"left out  3 rows in runs/sick/{folder.name}/quarantine.jsonl" in capfd.readouterr().err
    page = (folder / "report.html").read_text().replace("<wbr>", "")
    assert "quarantine.jsonl" in page


def test_a_run_that_leaves_nothing_out_and_one_that_cannot_begin_write_none(project: Path) -> None:
    assert main(["train", "sick.yaml", "--no-plan", "data.bad_rows=fail"]) == 2
    assert not (project / "runs").exists()
    table = project / "rows.csv"
    table.write_text("".join(table.read_text().splitlines(keepends=True)[:31]))
    assert main(["train", "sick.yaml", "--no-plan"]) == 0
    (folder,) = (project / "runs/sick").iterdir()
    assert not (folder / QUARANTINE).exists()
    assert QUARANTINE not in (folder / "report.html").read_text()


def test_a_cross_validation_lists_the_rows_that_are_in_no_fold(project: Path) -> None:
    assert main(["cv", "sick.yaml", "--folds", "2", "--no-plan"]) == 0
    (folder,) = (project / "runs/sick/cv").iterdir()
    assert [entry["line"] for entry in entries((folder / QUARANTINE).read_text())] == [34, 32]
