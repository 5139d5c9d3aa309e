"""Runs beside each other: newest first, by a metric, and in what their settings differ."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from snugfit.cli import main
from snugfit.errors import RunFolderError, SettingError
from snugfit.report.runs_table import differences, read_runs, sorted_by, table
from snugfit.results.run_folder import RunFolder


def write_run(
    runs: Path,
    id: str,
    accuracy: float | None = None,
    *,
    ended: bool = True,
    began: float = 0.0,
    **recipe: Any,
) -> Path:
    folder = runs / "news" / id
    folder.mkdir(parents=True)
    best = (
        None if accuracy is None else {"update": 3, "metrics": {"accuracy": accuracy, "loss": 1 - accuracy}}
    )
    events: list[dict[str, Any]] = [
        {
            "event": "run",
            "time": began,
            "name": "news",
            "id": id,
            "recipe": {"evaluate": {"best": "accuracy"}, **recipe},
        },
        {"event": "update", "time": began + 1, "update": 3, "window": 3, "metrics": {"loss": 1.0}},
    ]
    if ended:
        events.append({"event": "end", "time": began + 2, "status": "finished", "updates": 3, "best": best})
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return folder


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "runs", "1-old", 0.9, began=100.0, optimizer={"adamw": {"learning_rate": 0.1}})
    write_run(tmp_path / "runs", "2-new", 0.8, began=200.0, optimizer={"adamw": {"learning_rate": 0.2}})
    write_run(tmp_path / "runs", "3-dead", ended=False, began=300.0, techniques=["mixup"])
    return tmp_path / "runs"


def names(rows: Any) -> list[str]:
    return [Path(row.folder).name for row in rows]


def test_the_newest_comes_first_and_the_best_where_that_is_asked_for(runs: Path) -> None:
    rows = read_runs([runs])
    assert names(rows) == ["3-dead", "2-new", "1-old"]
    assert names(sorted_by(rows, "accuracy")) == ["1-old", "2-new", "3-dead"]
    assert names(sorted_by(rows, "loss")) == ["1-old", "2-new", "3-dead"]
    assert names(sorted_by(rows, "min:accuracy")) == ["2-new", "1-old", "3-dead"]


def test_a_killed_run_is_told_from_one_that_is_trained(runs: Path) -> None:
    assert read_runs([runs])[0].status == "killed"
    # locks are a process's own: another one has to hold it
    import subprocess
    import sys

    hold = (
        "import sys; from pathlib import Path; from snugfit.results.run_folder import RunFolder\n"
        "with RunFolder(Path(sys.argv[1])).claimed(): print('held', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", hold, str(runs / "news/3-dead")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdin is not None
        assert other.stdout.readline() == "held\n"
        assert RunFolder(runs / "news/3-dead").busy
        assert read_runs([runs])[0].status == "in progress"
        other.stdin.close()


def test_settings_that_differ_are_named_with_every_value(runs: Path) -> None:
    rows = read_runs([runs / "news/1-old", runs / "news/2-new"])
    assert differences(rows) == {"optimizer.adamw.learning_rate": [0.2, 0.1]}
    assert differences(read_runs([runs]))["techniques.mixup"] == [True, None, None]
    assert differences(rows[:1]) == {}


def test_a_table_has_a_line_for_each_run(runs: Path) -> None:
    head, *lines = table(read_runs([runs]))
    assert head.split()[:5] == ["run", "began", "status", "updates", "time"] and len(lines) == 3
    assert lines[0].split()[-2:] == ["–", "–"]
    assert (
        len({line.index(word) for line, word in zip(lines, ("killed", "finished", "finished"), strict=True)})
        == 1
    )


def test_the_command_lists_and_compares(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runs", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [run["metrics"].get("accuracy") for run in listed["runs"]] == [
        None,
        0.8,
        0.9,
    ] and "differ" not in listed
    assert main(["runs", "runs/news/1-old", "runs/news/2-new"]) == 0
    assert "optimizer.adamw.learning_rate  0.2    0.1" in capsys.readouterr().out
    assert main(["runs", "runs/news/1-old", "runs/news/1-old"]) == 0
    assert "The recipes are the same." in capsys.readouterr().out


def test_bad_input_is_one_message(runs: Path) -> None:
    with pytest.raises(RunFolderError, match="nowhere: is not there"):
        read_runs([Path("nowhere")])
    (runs / "empty").mkdir()
    with pytest.raises(RunFolderError, match="holds no run"):
        read_runs([runs / "empty"])
    with pytest.raises(SettingError, match="no run has 'acuracy'.*accuracy"):
        sorted_by(read_runs([runs]), "acuracy")


def test_a_run_that_has_only_begun_is_left_out(runs: Path) -> None:
    (runs / "news/4-begun").mkdir()
    (runs / "news/4-begun/events.jsonl").touch()
    assert len(read_runs([runs])) == 3
