"""Searches over whole recipes: what is found, pruning, going on in the middle, failures, the tracker, the command."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import snugfit as sf
from snugfit.cli import main
from snugfit.core.entry import as_entry
from snugfit.errors import MissingExtra, ModelError, SettingError, TrainingFailed
from snugfit.planner.answers.answer import Answer, Choice
from snugfit.recipe import Recipe, load_recipe
from snugfit.report.page import section_of_tools
from snugfit.run import from_recipe
from snugfit.run.call_options import RunOptions
from snugfit.run.plans import planning
from snugfit.step.step import Step
from snugfit.system.rounding import MKL_MODE
from snugfit.tools.tune import door
from snugfit.tools.tune import study as study_home
from snugfit.tools.tune.door import tune
from snugfit.tools.tune.result import Choices, Tuned
from snugfit.tools.tune.study import Study
from snugfit.tracking.spool import read_events
from snugfit.tracking.translate import to_batch
from tests.unit.report.fake_plan import qlora_on_a_4090

# One weight w from 0 towards 3 on (w - 3)^2, whose slope is 2 (w - 3): an update at the rate r leaves 9 (1 - 2 r)^2,
# and the rate 0.5 leaves nothing.
PARABOLA = """\
import torch
from torch import nn

def make_model():
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    return model

def make_rows():
    return [(torch.ones(1), torch.full((1,), 3.0)) for _ in range(8)]
"""
RECIPE = """\
name: parabola
task: python
model: parabola_of_tune:make_model
data: {train: parabola_of_tune:make_rows, validation: 0.5}
loss: mse
train: {epochs: 4, global_batch: 4}
optimizer: {sgd: {learning_rate: 0.1, momentum: 0.0}}
schedule: null
techniques: []
evaluate: {metrics: [], best: loss}
plan: {device: cpu}
track: {mlflow: false}
"""
RATE = "optimizer.sgd.learning_rate"
RATES = {RATE: "0.01..0.99"}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tune")
    (folder / "parabola_of_tune.py").write_text(PARABOLA)
    (folder / "parabola.yaml").write_text(RECIPE)
    return folder


def parabola(project: Path, tmp_path: Path, *overrides: str) -> Recipe:
    return load_recipe(
        project / "parabola.yaml", [f"output={tmp_path / 'runs'}", *overrides], allow_code=True
    )


def told(found: Tuned) -> list[tuple[Any, ...]]:
    """All of a search that does not depend on when and where it was run."""
    return [
        (each.number, each.state, each.parameters, each.value, each.evaluations, each.reason)
        for each in found.trials
    ]


def folder_of(output: Path) -> Path:
    (folder,) = (output / "parabola" / "tools" / "tune").iterdir()
    return folder


@pytest.mark.slow
def test_the_rate_that_leaves_nothing_is_found(project: Path, tmp_path: Path):
    recipe = parabola(project, tmp_path, "train.updates=1", "train.epochs=null")
    found = sf.tune(recipe, RATES, trials=25, pruner="none")
    assert found.best is not None and abs(found.best.parameters[RATE] - 0.5) < 0.03
    for trial in found.trials:
        assert trial.value == pytest.approx(9 * (1 - 2 * trial.parameters[RATE]) ** 2, rel=1e-4, abs=1e-9)


@pytest.mark.slow
def test_a_choice_is_searched_and_the_best_recipe_has_it(project: Path, tmp_path: Path):
    recipe = parabola(project, tmp_path)
    found = tune(recipe, {RATE: [0.05, 0.4]}, trials=9)
    assert found.planned == 2 == len(found.trials) and found.finished, "there are no more combinations"
    assert found.best is not None and found.best.parameters == {RATE: 0.4}
    best = load_recipe(Path(found.folder) / "best.yaml")
    assert (
        best.as_dict()
        == load_recipe(
            project / "parabola.yaml", [f"output={recipe.output}", f"{RATE}=0.4"], allow_code=True
        ).as_dict()
    )
    assert from_recipe.train_recipe(best).best["metrics"]["loss"] == found.best.value  # type: ignore[index]


@pytest.mark.slow
def test_trials_that_differ_in_numbers_of_learning_alone_are_planned_once(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.delenv(MKL_MODE)  # as processes of users begin
    planned: list[float] = []

    def plan(recipe: Recipe, *asked: Any) -> Answer:
        planned.append(recipe.optimizer.momentum)  # type: ignore[attr-defined]
        own = tuple(as_entry(each) for each in recipe.all_techniques())
        return replace(qlora_on_a_4090(), choice=Choice(2, "fp32", own), alternatives=())

    monkeypatch.setattr(planning, "plan_anew", plan)
    search = {RATE: [0.1, 0.2], "optimizer.sgd.momentum": [0.0, 0.5, 0.9]}
    found = tune(parabola(project, tmp_path), search, trials=6, options=RunOptions(plan=True))
    assert len({tuple(each.parameters.values()) for each in found.trials}) == 6
    assert sorted(map(bool, planned)) == [False, True], "once without momentum's state and once with it"
    for each in found.trials:
        ran = load_recipe(Path(str(each.run_dir)) / "recipe.yaml", allow_code=True)
        assert ran.plan.micro_batch == 2
        assert as_entry(ran.optimizer)["sgd"]["learning_rate"] == each.parameters[RATE]
        assert ran.optimizer.momentum == each.parameters["optimizer.sgd.momentum"]  # type: ignore[attr-defined]


def kill_at(monkeypatch: pytest.MonkeyPatch, update: int) -> None:
    """Let the power go at that update of all."""
    real, count = Step.__call__, 0

    def failing(self: Step, *given: Any, **named: Any) -> Any:
        nonlocal count
        count += 1
        if count == update:
            raise RuntimeError("the power is gone")
        return real(self, *given, **named)

    monkeypatch.setattr(Step, "__call__", failing)


@pytest.mark.slow
@pytest.mark.parametrize(("pruner", "late"), [("median", 18), ("hyperband", 20)])
def test_a_search_that_was_killed_goes_on_as_if_it_had_not_been(
    project: Path, tmp_path: Path, monkeypatch, pruner: str, late: int
):
    whole = tune(parabola(project, tmp_path), RATES, trials=13, pruner=pruner)
    assert whole.counts()["pruned"] > 0, "else nothing is seen of it"
    recipe = parabola(project, tmp_path, f"output={tmp_path / 'other'}")
    for update in (1, 7, late):  # before the first checkpoint of a trial, between two, and far on
        with monkeypatch.context() as patch:
            kill_at(patch, update)
            with pytest.raises(RuntimeError, match="the power is gone"):
                tune(recipe, RATES, trials=13, pruner=pruner)
    counted: list[str] = []
    resume_run = from_recipe.resume_run
    monkeypatch.setattr(
        from_recipe, "resume_run", lambda *given: counted.append("resumed") or resume_run(*given)
    )
    found = tune(recipe, RATES, trials=13, pruner=pruner)
    assert counted == ["resumed"], "from its checkpoint"
    assert told(found) == told(whole) and found.folder != whole.folder


@pytest.mark.slow
def test_a_trial_killed_between_the_decision_to_prune_it_and_its_end_is_pruned(
    project: Path, tmp_path: Path, monkeypatch
):
    recipe = parabola(project, tmp_path)
    monkeypatch.setattr(Study, "report", lambda *given: True)

    def killed(*given: Any, **named: Any) -> None:
        raise RuntimeError("the power is gone")

    with monkeypatch.context() as patch:
        patch.setattr(Study, "end", killed)
        with pytest.raises(RuntimeError, match="the power is gone"):
            tune(recipe, {RATE: [0.1, 0.2]})
    monkeypatch.setattr(from_recipe, "resume_run", killed)
    monkeypatch.setattr(from_recipe, "train_recipe", killed)
    with pytest.raises(RuntimeError, match="the power is gone"):
        tune(recipe, {RATE: [0.1, 0.2]})  # of the second trial
    kept = json.loads((folder_of(tmp_path / "runs") / "found.json").read_text())
    assert [each["state"] for each in kept["trials"]] == ["pruned"]


@pytest.mark.slow
def test_a_trial_that_was_killed_after_its_end_is_not_trained_again(
    project: Path, tmp_path: Path, monkeypatch
):
    recipe = parabola(project, tmp_path)
    whole = tune(parabola(project, tmp_path, f"output={tmp_path / 'other'}"), {RATE: [0.1, 0.2]})

    def killed(*given: Any, **named: Any) -> None:
        raise RuntimeError("the power is gone")

    with monkeypatch.context() as patch:
        patch.setattr(Study, "end", killed)
        with pytest.raises(RuntimeError):
            tune(recipe, {RATE: [0.1, 0.2]})
    run = next((folder_of(tmp_path / "runs") / "trial-1").iterdir())
    found = tune(recipe, {RATE: [0.1, 0.2]})
    assert told(found) == told(whole) and found.trials[0].run_dir == str(run)


@pytest.mark.slow
def test_a_search_that_is_done_is_read_and_nothing_is_run(project: Path, tmp_path: Path, monkeypatch):
    recipe = parabola(project, tmp_path)
    first = tune(recipe, RATES, trials=2)
    monkeypatch.setattr(from_recipe, "train_recipe", None)
    events = (Path(first.folder) / "events.jsonl").read_bytes()
    assert tune(recipe, RATES, trials=2) == first
    assert tune(recipe, RATES, trials=1).trials == first.trials
    assert (Path(first.folder) / "events.jsonl").read_bytes() == events


@pytest.mark.slow
def test_more_trials_are_added_and_another_search_begins_anew(project: Path, tmp_path: Path):
    recipe = parabola(project, tmp_path)
    first = tune(recipe, RATES, trials=1)
    more = tune(recipe, RATES, trials=2)
    assert more.folder == first.folder and more.trials[0] == first.trials[0] and len(more.trials) == 2
    assert tune(recipe, {RATE: "0.01..0.98"}, trials=1).folder != first.folder
    assert tune(parabola(project, tmp_path, "train.epochs=1"), RATES, trials=1).folder != first.folder


@pytest.mark.slow
def test_a_pruned_trial_stops_early_cleanly_and_leaves_no_checkpoint_and_no_model(
    project: Path, tmp_path: Path
):
    found = tune(parabola(project, tmp_path), RATES, trials=10)
    pruned = [each for each in found.trials if each.state == "pruned"]
    finished = [each for each in found.trials if each.state == "finished"]
    assert pruned and all(len(each.evaluations) == 4 for each in finished)
    for trial in pruned:
        assert len(trial.evaluations) < 4 and trial.reason is not None and "behind" in trial.reason
        end = read_events(Path(str(trial.run_dir)) / "events.jsonl")[-1]
        assert (end["status"], end["resumable"], end["updates"]) == ("stopped", False, len(trial.evaluations))
        page = (Path(str(trial.run_dir)) / "report.html").read_text()
        assert trial.reason in page and "snugfit resume" not in page
    assert not list(Path(found.folder).glob("trial-*/*/checkpoints"))
    assert found.best in finished
    kept = {each.number for each in found.trials if (Path(str(each.run_dir)) / "best").exists()}
    assert kept == {each.number for each in finished}


@pytest.mark.slow
def test_a_higher_value_is_better_where_the_metric_says_so(project: Path, tmp_path: Path):
    found = tune(parabola(project, tmp_path, "evaluate.best=max:loss"), {RATE: [0.01, 0.4]})
    assert found.higher and found.best is not None and found.best.parameters == {RATE: 0.01}


@pytest.mark.slow
def test_a_trial_that_fails_says_why_and_the_search_goes_on(project: Path, tmp_path: Path):
    recipe = parabola(project, tmp_path, "non_finite={policy: stop}")
    words: list[str] = []
    found = tune(recipe, {RATE: [1.0e38, 0.2]}, tell=words.append)
    by_rate = {each.parameters[RATE]: each for each in found.trials}
    assert by_rate[1e38].state == "failed" and "not finite" in str(by_rate[1e38].reason)
    assert found.best is by_rate[0.2] and any("failed" in each and "not finite" in each for each in words)


def test_a_search_in_which_every_trial_fails_fails(project: Path, tmp_path: Path):
    recipe = parabola(project, tmp_path, "non_finite={policy: stop}")
    for _ in range(2):  # also when it is only read
        with pytest.raises(TrainingFailed, match="none of the 2 trials was finished"):
            tune(recipe, {RATE: [1.0e38, 2.0e38]})


@pytest.mark.slow
def test_a_searched_value_that_the_run_refuses_is_a_failed_trial_and_the_search_goes_on(
    project: Path, tmp_path: Path
):
    (project / "normed_of_tune.py").write_text(
        "import torch\ndef make():\n    return torch.nn.Sequential(torch.nn.BatchNorm1d(1), torch.nn.Linear(1, 1))\n"
        "def rows():\n    return [(torch.full((1,), float(row)), torch.ones(1)) for row in range(9)]\n"
    )
    names = (
        "model=normed_of_tune:make",
        "data.train=normed_of_tune:rows",
        "data.validation=normed_of_tune:rows",
    )
    found = tune(parabola(project, tmp_path, *names), {"train.global_batch": [4, 3]})
    by_batch = {each.parameters["train.global_batch"]: each for each in found.trials}
    assert by_batch[4].state == "failed" and "single example" in str(by_batch[4].reason)
    assert found.best is by_batch[3]


@pytest.mark.parametrize(
    ("setting", "searched"),
    [
        ("new.yaml:3: train.global_batch", True),
        ("train.global_batch", True),
        ("train.epochs", False),
        ("optimizer.sgd", True),
        ("optimizers", False),
    ],
)
def test_only_a_setting_that_is_searched_is_of_the_trial(setting: str, searched: bool):
    space = {"train.global_batch": Choices((1, 2)), "optimizer": Choices(("sgd", "adamw"))}
    assert door._is_searched(setting, space) is searched


def test_a_folder_and_shards_in_which_a_file_has_changed_are_other_data(tmp_path: Path):
    (tmp_path / "pictures" / "cat").mkdir(parents=True)
    picture, shard = tmp_path / "pictures" / "cat" / "a b.png", tmp_path / "rows-000.tar"
    for file, source in (
        (picture, str(tmp_path / "pictures")),
        (shard, str(tmp_path / "rows-{000..000}.tar")),
    ):
        file.write_bytes(b"one")
        before = door._digests(source, tmp_path)
        assert before == door._digests(source, tmp_path)
        file.write_bytes(b"two")
        assert door._digests(source, tmp_path) != before
    before = door._digests(str(tmp_path / "pictures"), tmp_path)
    (tmp_path / "pictures" / ".DS_Store").write_bytes(b"a look at it")
    assert door._digests(str(tmp_path / "pictures"), tmp_path) == before
    picture.rename(tmp_path / "pictures" / "b.png")
    assert door._digests(str(tmp_path / "pictures"), tmp_path) != before


def test_a_mistake_of_the_user_stops_the_search_and_leaves_no_folder(project: Path, tmp_path: Path):
    with pytest.raises(ModelError, match="has no 'nothing'"):
        tune(parabola(project, tmp_path, "model=parabola_of_tune:nothing"), RATES)
    assert not list((tmp_path / "runs").rglob("tune.json"))


@pytest.mark.parametrize(
    ("search", "given", "message"),
    [
        ({RATE: "-1..1.0"}, {}, "is refused"),
        ({}, {}, "nothing to search"),
        (RATES, {"trials": 0}, "trials: 0"),
        (RATES, {"pruner": "medin"}, "Did you mean 'median'"),
    ],
)
def test_a_search_that_cannot_be_is_refused_before_anything_is_written(
    project: Path, tmp_path: Path, search: Any, given: Any, message: str
):
    with pytest.raises(SettingError, match=message):
        tune(parabola(project, tmp_path), search, **given)
    with pytest.raises(SettingError, match=r"data\.validation"):
        tune(parabola(project, tmp_path, "data.validation=null"), RATES)
    with pytest.raises(SettingError, match=r"plan\.devices"):
        tune(parabola(project, tmp_path, "plan.devices=2"), RATES)
    assert not (tmp_path / "runs").exists()


def test_without_optuna_nothing_begins(project: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(study_home, "find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"snugfit\[tune\]"):
        tune(parabola(project, tmp_path), RATES)


@pytest.mark.slow
def test_time_is_that_of_all_trials_and_the_same_call_goes_on(project: Path, tmp_path: Path):
    recipe = parabola(project, tmp_path)
    found = tune(recipe, {RATE: [0.1, 0.2]}, options=RunOptions(stop_after_seconds=1e-6))
    assert not found.finished and found.stop_reason and found.trials == ()
    found = tune(recipe, {RATE: [0.1, 0.2]})
    assert found.finished and found.stop_reason is None


def test_a_signal_stops_the_search_even_where_the_trial_is_pruned_at_that_moment(
    project: Path, tmp_path: Path, monkeypatch
):
    def report(study: Study, *given: Any) -> bool:
        os.kill(os.getpid(), signal.SIGTERM)
        return True

    monkeypatch.setattr(Study, "report", report)
    found = tune(parabola(project, tmp_path), RATES, trials=3)
    assert found.stop_reason == "received SIGTERM" and [each.state for each in found.trials] == ["pruned"]


@pytest.mark.slow
def test_the_tracker_is_sent_each_value_and_the_best_so_far(project: Path, tmp_path: Path):
    found = tune(parabola(project, tmp_path), {RATE: [0.1, 0.2, 0.3]})
    batch, malformed = to_batch(read_events(Path(found.folder) / "events.jsonl"))
    assert malformed == 0 and batch.status == "finished"
    sent = {(each.name, each.step): each.value for each in batch.metrics}
    assert [sent["trial/loss", number] for number in (1, 2, 3)] == [each.value for each in found.trials]
    assert [sent["best/loss", number] for number in (1, 2, 3)] == found.best_so_far()
    assert batch.params[f"search.{RATE}"] == "0.1,0.2,0.3"


@pytest.mark.slow
def test_runs_of_trials_are_shown_under_one_run(project: Path, tmp_path: Path):
    found = tune(parabola(project, tmp_path, "track.mlflow=true"), {RATE: [0.1, 0.2]})
    store = sqlite3.connect(tmp_path / "runs" / "mlflow.db")
    parents = store.execute(
        "select value, count(*) from tags where key = 'mlflow.parentRunId' group by value"
    )
    ((parent, children),) = parents.fetchall()
    assert children == 2
    measured = dict(
        store.execute("select key, value from latest_metrics where run_uuid = ?", (parent,)).fetchall()
    )
    assert found.best is not None and measured["best/loss"] == pytest.approx(found.best.value)
    assert store.execute("select status from runs").fetchall() == [("FINISHED",)] * 3


def test_the_command_searches_says_its_result_and_goes_on(project: Path, tmp_path: Path, capsys):
    recipe = str(project / "parabola.yaml")
    given = [
        "tune",
        recipe,
        "--allow-code",
        f"output={tmp_path / 'runs'}",
        "--search",
        f"{RATE}=0.1,0.4",
        "--no-plan",
    ]
    assert main([*given, "--json"]) == 0
    printed = capsys.readouterr()
    phases = [
        line for line in printed.err.splitlines() if line.startswith("tune ") and not line.endswith("s)")
    ]
    assert phases[0] == "tune     reading the recipe and the search …"
    assert [line[:22] for line in phases if " of 2:" in line] == [
        f"tune     trial {number} of 2:" for number in (1, 2)
    ]
    said = json.loads(printed.out.splitlines()[-1])
    assert said["best"]["parameters"] == {RATE: 0.4} and said["counts"]["finished"] == 2
    assert Path(said["page"]).exists() and Path(said["recipe"]).exists()
    assert main(given) == 0
    printed = capsys.readouterr()
    assert "trial" in printed.out and "0.4" in printed.out and f"goes on with {said['folder']}" in printed.err
    assert main([*given, "--stop-after", "1s", "--trials", "1"]) == 0, "it is done"
    run = from_recipe.train_recipe(load_recipe(recipe, [f"output={tmp_path / 'runs'}"], allow_code=True))
    assert "tune.html" in section_of_tools(Path(run.run_dir)) and "the best of 2" in section_of_tools(
        Path(run.run_dir)
    )


def test_a_file_says_what_to_search_and_an_option_over_it(project: Path, tmp_path: Path, capsys):
    (tmp_path / "space.yaml").write_text(f"search: {{{RATE}: [0.1, 0.2], train.epochs: [1, 2]}}\n")
    given = [
        "tune",
        str(project / "parabola.yaml"),
        "--allow-code",
        f"output={tmp_path / 'runs'}",
        "--space",
        "space.yaml",
    ]
    assert main([*given, "--search", f"{RATE}=0.3,0.4", "--trials", "1", "--no-plan", "--json"]) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert said["search"] == {RATE: "0.3,0.4", "train.epochs": "1,2"}


def test_exit_codes_tell_a_failure_a_mistake_and_a_stop_apart(project: Path, tmp_path: Path, capsys):
    given = [
        "tune",
        str(project / "parabola.yaml"),
        "--allow-code",
        f"output={tmp_path / 'runs'}",
        "--no-plan",
    ]
    assert main(["tune"]) == 2 and main(given) == 2
    assert "nothing to search" in capsys.readouterr().err
    assert main([*given, "--search", f"{RATE}=0.1,0.2", "--stop-after", "0.000001s"]) == 75
    assert main([*given, "non_finite={policy: stop}", "--search", f"{RATE}=1e38,2e38"]) == 1


def test_another_process_at_the_same_search_is_refused_and_its_folder_stays(project: Path, tmp_path: Path):
    recipe = parabola(project, tmp_path)
    folder = Path(tune(recipe, RATES, trials=1, options=RunOptions(stop_after_seconds=1e-6)).folder)
    for run in folder.glob("trial-*/*/events.jsonl"):
        run.unlink()  # as if the other had not begun
    import multiprocessing

    context = multiprocessing.get_context("fork")
    held, done = context.Event(), context.Event()

    def hold() -> None:
        with door.RunFolder(folder).claimed():
            held.set()
            done.wait(20)

    other = context.Process(target=hold)
    other.start()
    try:
        assert held.wait(20)
        with pytest.raises(sf.UserError, match="another process"):
            tune(recipe, RATES, trials=1)
        assert (folder / "tune.json").exists()
    finally:
        done.set()
        other.join()
