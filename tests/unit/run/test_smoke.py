"""Smoke runs: a short run through every path, and whether the model can memorise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from snugfit.errors import RunFolderError, TrainingFailed
from snugfit.recipe import load_recipe
from snugfit.results.run_folder import RunFolder
from snugfit.run.call_options import RunOptions
from snugfit.run.from_recipe import resume_run, train_recipe
from snugfit.run.newest import newest_resumable, run_to_resume
from snugfit.run.smoke import DEV_WINDOWS, OVERFIT_PASSES, overfit_verdict, verify_reload
from snugfit.run.training.result import RunResult
from snugfit.tracking.spool import read_events
from tests.unit.run.training.runs import finish, make_training

MODULE = """
import torch
from torch import nn

def model():
    return nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 2))

def data():
    inputs = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    return [(x, (x[0] * x[1] > 0).long()) for x in inputs]
"""
RECIPE = """
task: python
model: SMOKE_MODULE:model
data: {train: "SMOKE_MODULE:data", validation: 0.25}
train: {epochs: 4, global_batch: 8}
optimizer: {adamw: {learning_rate: RATE, weight_decay: 0.0}}
techniques: []
evaluate: {every: 100}
early_stopping: {patience: 1}
track: {mlflow: true}
output: OUTPUT
"""


Run = Callable[..., RunResult]


@pytest.fixture(scope="session")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the module; Python imports one module of a name, so all tests share it."""
    folder = tmp_path_factory.mktemp("material")
    (folder / "smoke_material.py").write_text(MODULE)
    return folder


@pytest.fixture
def run(material: Path, tmp_path: Path) -> Run:
    def run_recipe(
        rate: float = 0.05, more: str = "", *, overrides: Sequence[str] = (), **options: Any
    ) -> RunResult:
        text = RECIPE.replace("SMOKE_MODULE", "smoke_material").replace("OUTPUT", str(tmp_path / "runs"))
        (material / "tiny.yaml").write_text(text.replace("RATE", str(rate)) + more)
        return train_recipe(
            load_recipe(material / "tiny.yaml", overrides, allow_code=True), RunOptions(**options)
        )

    return run_recipe


def kinds(result: RunResult) -> list[str]:
    return [event["event"] for event in read_events(Path(result.run_dir) / "events.jsonl")]


def test_a_fast_dev_run_takes_every_path_in_two_updates(run: Run, tmp_path: Path) -> None:
    result = run(fast_dev_run=True)
    assert (result.status, result.updates) == ("finished", DEV_WINDOWS)
    found = kinds(result)
    assert [found.count(kind) for kind in ("run", "update", "evaluation", "checkpoint", "end")] == [
        1,
        2,
        2,
        2,
        1,
    ]
    assert "resume" not in found
    assert (Path(result.run_dir) / "best/model.safetensors").exists()
    assert (Path(result.run_dir) / "report.html").exists()
    assert result.tracker_run_id is None  # a smoke run is not tracked
    assert not list(tmp_path.rglob("*.db"))


def test_a_fast_dev_run_is_not_resumed_as_the_real_one(run: Run) -> None:
    result = run(fast_dev_run=True)
    with pytest.raises(
        RunFolderError,
        match=r"was a smoke run \(--fast-dev-run\), which is cut short.* Train what it tried: snugfit train .*recipe\.yaml",
    ):
        resume_run(result.run_dir)


def test_a_fast_dev_run_fails_if_what_was_saved_is_not_what_was_trained(tmp_path: Path) -> None:
    training = make_training(tmp_path)
    finish(training)
    verify_reload(training)
    with torch.no_grad():
        training.step.parameters[0].add_(1)
    with pytest.raises(TrainingFailed, match="loaded back is not the state that was saved"):
        verify_reload(training)


@pytest.mark.parametrize(("rate", "verdict"), [(0.05, "it can memorise"), (1e-7, "it did not memorise")])
def test_overfitting_says_whether_the_model_can_memorise(run: Run, rate: float, verdict: str) -> None:
    result = run(rate, overfit_batches=2)
    assert result.status == ("finished" if verdict == "it can memorise" else "failed")
    assert result.updates == 2 * OVERFIT_PASSES
    assert result.stop_reason is not None
    assert result.stop_reason.startswith(f"overfit: {verdict}")
    assert "of 2 batches" in result.stop_reason
    events = read_events(Path(result.run_dir) / "events.jsonl")
    (end,) = (event for event in events if event["event"] == "end")
    assert end["stop_reason"] == result.stop_reason
    kinds = [event["event"] for event in events]
    (note,) = (event for event in events if event["event"] == "note")
    assert f"{OVERFIT_PASSES} passes over the same 2 batches" in note["text"]
    assert kinds.index("note") < kinds.index("run")  # before it begins


def test_overfitting_keeps_a_schedule_without_which_the_rate_has_no_meaning(run: Run) -> None:
    kept = run(1.0, "schedule: {noam: {dim: 64, warmup: 20}}", overfit_batches=1)
    rates = [
        event["metrics"]["learning_rate"]
        for event in read_events(Path(kept.run_dir) / "events.jsonl")
        if event["event"] == "update"
    ]
    assert max(rates) == pytest.approx(64**-0.5 * 20**-0.5)
    left = run(0.05, "schedule: linear", overfit_batches=1)
    assert {
        event["metrics"]["learning_rate"]
        for event in read_events(Path(left.run_dir) / "events.jsonl")
        if event["event"] == "update"
    } == {0.05}


def test_overfitting_that_was_stopped_gives_no_verdict(run: Run) -> None:
    result = run(overfit_batches=1, stop_after_seconds=0.0)
    assert (result.status, result.updates) == ("stopped", 1)
    assert str(result.stop_reason).startswith("stopped after 0")
    assert not result.resumable  # the recipe of its folder is of another length
    folder = Path(result.run_dir)
    with pytest.raises(RunFolderError, match="was stopped and has a checkpoint"):
        newest_resumable(folder.parent.parent)
    with pytest.raises(RunFolderError, match=r"was a smoke run \(--overfit-batches\)"):
        run_to_resume(folder)
    assert overfit_verdict(result, RunFolder(Path(result.run_dir))) == result


def test_overfitting_keeps_an_optimizer_that_has_a_schedule_of_its_own(run: Run) -> None:
    settings = "{learning_rate: 0.05, warmup: 0.1}"
    result = run(overrides=[f"optimizer={{schedule_free: {settings}}}"], overfit_batches=1)
    assert result.status == "finished"


@pytest.mark.parametrize("options", [{"fast_dev_run": True}, {"overfit_batches": 1}])
def test_a_smoke_run_finds_its_micro_batch_too(run: Run, options: dict[str, Any]) -> None:
    result = run(overrides=["plan.micro_batch=auto"], **options)
    assert result.status == "finished", result.stop_reason
    told = {event["event"]: event for event in read_events(Path(result.run_dir) / "events.jsonl")}
    assert told["fit"]["micro_batch"] == told["run"]["plan"]["micro_batch"] == 8
    assert told["fit"]["longest"] is True
