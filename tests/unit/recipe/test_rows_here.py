"""The rows of a recipe are looked at before anything heavy is imported: what is not there is said in a moment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from snugfit.cli import main
from snugfit.data.sources import read_beginning
from snugfit.errors import DataError
from snugfit.recipe import load_recipe

TABLE = "task: tabular-classification\nmodel: tabm\ndata: {train: rows.csv, label: kind}\n"
TEXTS = (
    "task: text-classification\nmodel: m\ndata:\n  train: rows.csv\n  text: [title, words]\n  label: kind\n"
)
PAIR = "task: text-classification\nmodel: m\ndata:\n  train: {mine: rows.csv, theirs: {from: other.jsonl, rename: {t: title}}}\n  text: [title, words]\n  label: kind\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_text("title,words,kind\na,b,c\n")
    (tmp_path / "model.pt").write_bytes(b"PK\x03\x04")
    for name in ("book.xlsx", "notes.doc"):
        (tmp_path / name).write_bytes(b"PK\x03\x04")
    (tmp_path / "folder").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("recipe", "change", "said"),
    [
        (TABLE, "data.train=row.csv", "data.train: there is no file row.csv"),
        (TABLE, "data.train=folder", "data.train: folder is a folder"),
        (TABLE, "data.train=model.pt", "data.train: model.pt holds weights or tensors"),
        (TABLE, "data.train=book.xlsx", "data.train: book.xlsx is a spreadsheet. Save it as CSV."),
        (TABLE, "data.train=notes.doc", "data.train: notes.doc is of no known kind"),
        (TABLE, "data.label=kid", "data.label: rows.csv has no column 'kid'. Did you mean 'kind'?"),
        (TABLE, "data.columns=[titel]", "data.columns: rows.csv has no column 'titel'"),
        (TABLE, "data.validation=held.csv", "data.validation: there is no file held.csv"),
        (TEXTS, "data.pair=second", "data.pair: rows.csv has no column 'second'"),
    ],
)
def test_a_mistake_in_the_rows_is_said_before_anything_is_imported_or_written(
    here: Path,
    recipe: str,
    change: str,
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("snugfit.display.activity.PATIENCE_SECONDS", 600.0)
    (here / "r.yaml").write_text(recipe)
    assert main(["train", "r.yaml", change]) == 2
    (line,) = capsys.readouterr().err.splitlines()  # nothing was begun
    assert line.startswith(f"error: override '{change}': {said}")
    assert not (here / "runs").exists()


def test_torch_is_not_imported_for_it(here: Path) -> None:
    (here / "r.yaml").write_text(TABLE.replace("kind", "kid"))
    script = "import sys; from snugfit.cli import main; assert main(['train', 'r.yaml']) == 2; assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert done.stderr.splitlines()[-1].startswith(
        "error: r.yaml:3: data.label: rows.csv has no column 'kid'"
    )


def test_each_of_several_sources_has_the_columns_under_their_new_names(here: Path) -> None:
    (here / "r.yaml").write_text(PAIR)
    (here / "other.jsonl").write_text('{"t": "a", "words": "b"}\n{"t": "a", "words": "b", "kind": "c"}\n')
    assert load_recipe("r.yaml", rows_here="all").data.label == "kind"
    (here / "other.jsonl").write_text('{"t": "a", "kind": "b"}\n')
    with pytest.raises(DataError, match=r"r.yaml:5: data.text: other.jsonl has no column 'words'"):
        load_recipe("r.yaml", rows_here="all")
    (here / "other.jsonl").write_text('{"title": "a", "words": "b", "kind": "c"}\n')
    with pytest.raises(
        DataError, match=r"r.yaml:4: data.train.theirs.rename: .*other.jsonl has no column 't'"
    ):
        load_recipe("r.yaml", rows_here="all")


def test_a_recipe_whose_rows_are_elsewhere_is_read_where_they_are_not_needed(here: Path) -> None:
    (here / "r.yaml").write_text(TABLE.replace("rows.csv", "elsewhere.csv"))
    for which in ("unseen", "present"):  # as a plan has it, which assumes some
        assert load_recipe("r.yaml", rows_here=which).data.train == str(here / "elsewhere.csv")
    with pytest.raises(DataError, match="no column 'kid'"):
        load_recipe("r.yaml", ["data.train=rows.csv", "data.label=kid"], rows_here="present")


def test_a_task_of_ones_own_reads_files_of_its_own(here: Path) -> None:
    (here / "task_of_own.py").write_text(
        "from dataclasses import replace\nfrom snugfit.tasks.tables.tabular_classification import CARD as THEIRS\n"
        "CARD = replace(THEIRS, name='own-rows')\n"
    )
    (here / "r.yaml").write_text(
        TABLE.replace("tabular-classification", "task_of_own:CARD").replace("rows.csv", "model.pt")
    )
    assert load_recipe("r.yaml", rows_here="all").data.train == str(here / "model.pt")


def test_of_a_large_file_whole_lines_of_the_beginning_are_read_and_one_of_json_is_left(
    tmp_path: Path,
) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("a,b\n" + '"x\ny",1\n' * 200_000)
    table = read_beginning(path, setting="data.train")
    assert table is not None and table.columns == ("a", "b")
    assert 100_000 < len(table.rows) < 200_000
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"a": 1}\n' * 200_000)  # a column may begin anywhere in it
    assert read_beginning(rows, setting="data.train") is None
    assert read_beginning("hf://a/b", setting="data.train") is None


def test_a_recipe_by_a_pipe_names_files_of_the_folder_where_the_command_is_given(here: Path) -> None:
    reading, writing = os.pipe()
    try:
        os.write(writing, TABLE.encode())
        os.close(writing)
        recipe = load_recipe(f"/dev/fd/{reading}")
    finally:
        os.close(reading)
    assert recipe.folder == here and recipe.data.train == str(here / "rows.csv")
