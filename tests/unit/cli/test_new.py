"""A technique or a task of the user's own begins with three files, which pass as they are written and overwrite nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from snugfit.cli import main
from snugfit.cli.new import FILL_IN, class_name_of, module_of
from snugfit.recipe.strict_yaml import Places, read_yaml


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "my_pkg" / "inner"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    (folder.parent / "__init__.py").touch()
    return folder


def test_three_files_are_written_and_name_each_other(
    package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", "technique", "sharper_loss", "my_pkg/inner", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert [Path(file).name for file in answer["files"]] == [
        "sharper_loss.py",
        "test_sharper_loss.py",
        "sharper_loss.md",
    ]
    assert answer["certify"] == (
        "snugfit certify --technique my_pkg.inner.sharper_loss:SharperLoss --oracle my_pkg.inner.test_sharper_loss:train"
    )
    for file in answer["files"]:
        text = Path(file).read_text()
        assert text.count(FILL_IN) >= 2 and "$" not in text, file
    page = (package / "sharper_loss.md").read_text()
    (entry,) = read_yaml(page.partition("```yaml\n")[2].partition("```")[0], "page", Places())["techniques"]
    assert entry == {"my_pkg.inner.sharper_loss:SharperLoss": {"factor": 0.5}}


@pytest.mark.slow  # a process of its own, with all laws
def test_the_written_test_passes_and_fails_where_the_technique_does_something_else(package: Path) -> None:
    assert main(["new", "technique", "sharper_loss", "my_pkg/inner"]) == 0
    assert passes(package / "test_sharper_loss.py") == (0, "4 passed")
    technique = package / "sharper_loss.py"
    technique.write_text(technique.read_text().replace("mul_(self.factor)", "mul_(1.1 * self.factor)"))
    code, summary = passes(package / "test_sharper_loss.py")
    assert code == 1 and summary == "1 failed, 3 passed"
    technique.write_text(technique.read_text().replace('self.require_positive("factor")', "pass"))
    assert passes(package / "test_sharper_loss.py")[1] == "4 failed"


def test_a_task_begins_with_three_files_that_name_each_other(
    package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["new", "task", "reading_time", "my_pkg/inner", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    names = ["reading_time.py", "test_reading_time.py", "reading_time.md"]
    assert [Path(file).name for file in answer["files"]] == names
    assert answer["recipe"] == "task: my_pkg.inner.reading_time:CARD"
    for file in answer["files"]:
        text = Path(file).read_text()
        assert text.count(FILL_IN) >= 2 and "$" not in text, file
    page = (package / "reading_time.md").read_text()
    recipe = read_yaml(page.partition("```yaml\n")[2].partition("```")[0], "page", Places())
    assert recipe["task"] == "my_pkg.inner.reading_time:CARD"
    assert main(["new", "task", "python", "my_pkg/inner"]) == 2
    assert "Snugfit has a task 'python'" in capsys.readouterr().err


@pytest.mark.slow  # a process of its own, with a run
def test_the_written_test_of_a_task_passes(package: Path) -> None:
    assert main(["new", "task", "reading_time", "my_pkg/inner"]) == 0
    assert passes(package / "test_reading_time.py") == (0, "3 passed")


def passes(test: Path) -> tuple[int, str]:
    """Return the exit code of pytest, and how many tests have passed and failed."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(test)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"},
    )
    return done.returncode, done.stdout.splitlines()[-1].partition(" in ")[0]


def test_nothing_is_overwritten_and_nothing_else_written(
    package: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (package / "sharper_loss.md").write_text("mine")
    assert main(["new", "technique", "sharper_loss", "my_pkg/inner"]) == 2
    assert "sharper_loss.md exists, and nothing is overwritten" in capsys.readouterr().err
    assert (package / "sharper_loss.md").read_text() == "mine"
    assert sorted(path.name for path in package.iterdir()) == ["__init__.py", "sharper_loss.md"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ema", "Snugfit has a technique 'ema'"),
        ("random", "random.py would hide Python's own module"),
        ("SharperLoss", "got the name 'SharperLoss', expected small letters"),
        ("sharper-loss", "got the name 'sharper-loss'"),
        ("lambda", "got the name 'lambda'"),
        ("../loss", "got the name '../loss'"),
    ],
)
def test_a_name_that_cannot_be_is_refused(name: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new", "technique", name, "somewhere"]) == 2
    assert words in capsys.readouterr().err
    assert not Path("somewhere").exists()


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("taken").touch()
    assert main(["new", "technique", "sharper_loss", "taken"]) == 2
    assert "taken is a file, expected a folder" in capsys.readouterr().err


def test_names_of_classes_and_modules(package: Path) -> None:
    assert class_name_of("a_b2_c") == "AB2C"
    assert module_of(package / "x.py") == "my_pkg.inner.x"
    assert module_of(package.parents[1] / "x.py") == "x"
