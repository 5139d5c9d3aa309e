"""Trackers of the user's own, by path and by entry point: they follow a run, replay it, harm nothing, and are code."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import snugfit as sf
from snugfit.cli import main
from snugfit.errors import CodeRefused, SettingError
from snugfit.recipe import load_recipe
from snugfit.system import code_consent
from snugfit.system.plugins import Importer
from snugfit.tracking.named import TRACKERS, trackers
from snugfit.tracking.sender import replay
from tests.unit.system.installed_package import install

TRACKER = """
import json

class Lines:
    def __init__(self, folder, experiment):
        self.path, self.experiment = folder / "lines.jsonl", experiment
    def open(self, run_id, name, start_ms):
        return run_id or f"{self.experiment}/{name}"
    def send(self, run_id, batch):
        with self.path.open("a") as file:
            for each in batch.metrics:
                file.write(json.dumps([run_id, each.name, each.step, each.value]) + "\\n")
    def close(self):
        pass

class Dead(Lines):
    def send(self, run_id, batch):
        raise ConnectionError("nobody answers")

class Leaving(Lines):
    def send(self, run_id, batch):
        if not (self.path.parent / "open").exists():
            raise SystemExit(3)
        super().send(run_id, batch)
    def close(self):
        raise SystemExit("done")

class Half:
    def open(self): pass

def make(): pass
"""
PATH = "trackers_of_own:Lines"
RECIPE = """\
task: python
model: trackers_of_own:build
data: {{train: 'trackers_of_own:rows', validation: null}}
train: {{updates: 4, global_batch: 4}}
track: {{mlflow: false, tensorboard: true, experiment: mine, others: [{name}]}}
"""
NETS = """
from torch import nn, tensor
def build(): return nn.Linear(2, 2)
def rows(): return [(tensor([float(n), 1.0]), n % 2) for n in range(8)]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a module that has trackers."""
    (tmp_path / "trackers_of_own.py").write_text(TRACKER + NETS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "trackers_of_own", raising=False)
    monkeypatch.setattr(code_consent, "_granted", set())
    return tmp_path


def recipe_in(folder: Path, name: str) -> Path:
    path = folder / "r.yaml"
    path.write_text(RECIPE.format(name=name))
    return path


def steps(run: Path, name: str = "train/loss") -> list[int]:
    rows = [json.loads(line) for line in (run / "lines.jsonl").read_text().splitlines()]
    return [step for _, metric, step, _ in rows if metric == name]


@pytest.mark.slow  # TensorBoard is imported beside it
def test_it_follows_a_run_of_a_recipe_beside_another_and_a_replay_sends_what_is_missing(folder: Path) -> None:
    assert main(["train", str(recipe_in(folder, PATH)), "--no-plan", "--quiet"]) == 0
    (run,) = Path("runs/r").iterdir()
    assert steps(run) == [1, 2, 3, 4] and (run / "tensorboard.json").is_file()
    first, *_ = (json.loads(line) for line in (run / "lines.jsonl").read_text().splitlines())
    assert first[0] == f"mine/r/{run.name}"
    again = replay(run, PATH)
    assert (again.sent, again.run_id) == (0, first[0])
    (run / "tracker-trackers_of_own-Lines.json").unlink()
    assert replay(run, PATH).remaining == 0 and steps(run) == [1, 2, 3, 4] * 2


def test_the_one_of_the_page_does_what_it_says(folder: Path) -> None:
    page = (Path(sf.__file__).parents[2] / "docs" / "trackers.md").read_text(encoding="utf-8")
    ((name, source),) = re.findall(r"```python\n# (\S+)\n(.*?)```", page, re.DOTALL)
    (folder / name).write_text(source)
    (call,) = re.findall(r"```python\n(sf\.train.*?)```", page, re.DOTALL)
    data = TensorDataset(torch.randn(16, 2), torch.randint(0, 2, (16,)))
    given: dict[str, Any] = {"epochs": 1, "global_batch": 8, "device": "cpu", "output": folder / "runs"}

    class Short:
        @staticmethod
        def train(model: nn.Module, data: Any, track: list[str]) -> Any:
            return sf.train(model, data, track=track[1:], **given)

    result = eval(call, {"sf": Short, "model": nn.Linear(2, 2), "data": data})
    rows = [json.loads(line) for line in (Path(result.run_dir) / "lines.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if row["name"] == "train/loss"] == [1, 2]


def test_one_that_is_dead_harms_neither_the_run_nor_another(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = TensorDataset(torch.randn(16, 2), torch.randint(0, 2, (16,)))
    given: dict[str, Any] = {"epochs": 1, "global_batch": 8, "device": "cpu", "output": folder / "runs"}
    result = sf.train(nn.Linear(2, 2), data, track=["trackers_of_own:Dead", PATH], **given)
    assert result.status == "finished" and steps(Path(result.run_dir)) == [1, 2]
    said = " ".join(capsys.readouterr().err.split())
    assert "events have not reached trackers_of_own:Dead (nobody answers)" in said
    assert f"snugfit track replay {result.run_dir} --uri trackers_of_own:Dead" in said


def test_one_that_calls_sys_exit_ends_neither_the_run_nor_itself_nor_a_replay(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = TensorDataset(torch.randn(16, 2), torch.randint(0, 2, (16,)))
    given: dict[str, Any] = {"epochs": 1, "global_batch": 8, "device": "cpu", "output": folder / "runs"}
    result = sf.train(nn.Linear(2, 2), data, track="trackers_of_own:Leaving", **given)
    assert result.status == "finished"
    said = " ".join(capsys.readouterr().err.split())
    assert "events have not reached trackers_of_own:Leaving (it called sys.exit(3))" in said
    # not by itself: a run tries as often as its time allows
    Path(result.run_dir, "open").touch()
    assert main(["track", "replay", str(result.run_dir), "--uri", "trackers_of_own:Leaving"]) == 2
    assert "did not take the events" in (said := capsys.readouterr().err) and "sys.exit('done')" in said
    assert steps(Path(result.run_dir)) == [1, 2], "it was sent before it was closed"
    (folder / "leaves.py").write_text("import sys\nsys.exit(0)\n")
    with pytest.raises(SettingError, match="importing 'leaves' failed: SystemExit: 0"):
        sf.train(nn.Linear(2, 2), data, track="leaves:Tracker", **given)


def test_one_that_a_package_lists_has_its_path_in_the_runs_recipe(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    install(folder, "own-package", TRACKERS.group, lines=PATH)
    monkeypatch.syspath_prepend(str(folder))
    recipe = recipe_in(folder, "lines")
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    with pytest.raises(
        CodeRefused, match=r"model: trackers_of_own:build, .*track.others: trackers_of_own:Lines"
    ):
        load_recipe(recipe)
    loaded = load_recipe(recipe, allow_code=True)
    assert loaded.track.others == (PATH,) and PATH in loaded.code.values()
    assert "trackers_of_own" not in sys.modules, "only a run imports it"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("linez", "there is no tracker 'linez'"),
        ("trackers_of_own:Half", "a class without send and close"),
        ("trackers_of_own:make", "which is a function, expected the class of a tracker"),
        ("trackers_of_own:Missing", "has no 'Missing'"),
    ],
)
def test_what_cannot_be_used_is_refused_before_anything_is_written(
    folder: Path, name: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", str(recipe_in(folder, name)), "--no-plan", "--quiet"]) == 2
    assert words in capsys.readouterr().err and not Path("runs").exists()
    data = TensorDataset(torch.randn(8, 2), torch.randint(0, 2, (8,)))
    with pytest.raises(SettingError, match=words):
        sf.train(nn.Linear(2, 2), data, track=name, output="runs")
    assert not Path("runs").exists()


def test_a_tracker_that_is_named_twice_is_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(folder, "own-package", TRACKERS.group, lines=PATH)
    monkeypatch.syspath_prepend(str(folder))
    names = ["tensorboard", "lines", PATH, "tensorboard"]
    found = trackers(names, "track", Importer(folder=folder, allowed=True))
    assert [each.name for each in found] == ["tensorboard", PATH]
