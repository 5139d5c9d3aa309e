"""The page on tasks of one's own, executed as it is written: its files, its recipe, its commands, its Python."""

from __future__ import annotations

import csv
import re
import runpy
import shlex
import sys
from pathlib import Path

import pytest

import snugfit
from snugfit.cli import main

PAGE = (Path(snugfit.__file__).parents[2] / "docs" / "write_a_task.md").read_text(encoding="utf-8")


def files() -> dict[str, str]:
    """The blocks of the page that are files, by their names."""
    return dict(re.findall(r"```(?:python|yaml)\n# (\S+)\n(.*?)```", PAGE, re.DOTALL))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("my_pkg", "my_pkg.reading_time"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name, text in files().items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    (tmp_path / "my_pkg" / "__init__.py").touch()
    words = ["a", "longer", "sentence", "of", "several", "quite", "ordinary", "words"] * 5
    rows = [(" ".join(words[:count]), round(0.4 * count, 1)) for count in range(1, 41)] * 2
    with open("times.csv", "w", newline="") as file:
        csv.writer(file).writerows([("text", "seconds"), *rows])
    return tmp_path


@pytest.mark.slow
def test_the_commands_and_the_python_of_the_page_do_what_it_says(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    commands = re.findall(r"^\$ snugfit (.*)$", PAGE, re.MULTILINE)
    assert [line.split()[0] for line in commands] == ["new", "train", "predict", "evaluate", "tasks"]
    for line in commands:
        (run,) = [*Path("runs/reading").glob("*")] or [Path("none")]
        plain = ["--no-plan"] if line.startswith("train") else []
        assert main([*shlex.split(line.replace("runs/reading/ID", str(run))), *plain]) == 0, line
    shown = capsys.readouterr().out
    assert "Learn how long a text takes to read." in shown and "my_pkg/word_count.md" in shown
    with open("predicted.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    error = sum(abs(float(row["seconds_predicted"]) - float(row["seconds"])) for row in rows)
    assert error / len(rows) < 2
    capsys.readouterr()
    monkeypatch.syspath_prepend(str(folder))
    runpy.run_path("use.py", {"run": str(run)})
    assert re.match(r"\[\{'seconds_predicted': -?\d", capsys.readouterr().out)
