"""The laws of tasks, each for all of them: split, resume in the middle of an epoch, predictions after reload, bad rows by policy, plan, and a try by command.

All run in every gate, in about a second for each task: a plain loop over the windows stands for the run that is not stopped.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from snugfit.cli import main
from snugfit.deliver.predict import predict_file
from snugfit.errors import DataError
from snugfit.planner.answers.answer import Answer
from snugfit.planner.target import Target
from snugfit.planner.trace.dry_run import own_garbage
from snugfit.planner.worker import Worker
from snugfit.run.call_options import RunOptions
from snugfit.run.from_recipe import resume_run, train_recipe
from snugfit.run.plans.recipe_plan import plan_recipe
from snugfit.run.trained_model import load
from snugfit.tasks import discover
from snugfit.tools.setup import recipe_setup
from tests.unit.planner.profiled import profiled_peak
from tests.unit.tasks.task_cases import CASES, recipe_of, write_files, write_models
from tests.unit.tasks.trained_runs import AfterWindows, check_weights


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_models(folder)
    return folder


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_files()


def test_every_task_has_a_case() -> None:
    own = {name for name, card in discover().items() if not card.own_code}
    assert {name.partition(",")[0] for name in CASES} == own


every_case = pytest.mark.parametrize("case", CASES)
FEW = {"text-classification", "causal-lm", "image-classification", "tabular-regression", "forecasting"}
"""One of each kind of rows: what a run or a plan of each case takes is no quick test."""
every_case_slowly = pytest.mark.parametrize(
    "case", [each if each in FEW else pytest.param(each, marks=pytest.mark.slow) for each in CASES]
)
PLAIN = "optimizer={sgd: {learning_rate: 0.5, momentum: 0.0}}"
CONVOLVED = ("segmentation", "segmentation, segformer", "audio-classification")
"""Cases whose models convolve, in kernels that take within themselves what depends on the processor."""
NORMALISED = ("segmentation, segformer", "audio-classification")
"""Cases whose models have batch normalisation, which sees one micro-batch at a time, and two examples at least."""


@every_case
def test_a_window_in_parts_is_the_window(case: str, models: Path, project: None) -> None:
    if case in NORMALISED:
        pytest.skip("its model has batch normalisation")
    made, before = {}, {}
    for size in ("null", "1"):
        setup, _ = recipe_setup(
            recipe_of(case, models, PLAIN, "schedule=null", f"plan.micro_batch={size}", "train.seed=2")
        )
        step = setup.step()
        before = {name: each.clone() for name, each in step.model.state_dict().items()}
        result = step(next(setup.loader().windows(0, 1)))
        made[size] = {**step.model.state_dict(), "loss": torch.tensor(result.loss)}
    for name, whole in made["null"].items():
        torch.testing.assert_close(made["1"][name], whole, atol=1e-5, rtol=1e-4)
    # or a wrong gradient would be no difference; of two rows with other classes they nearly cancel, which this seed has not together
    assert any(
        not torch.allclose(made["null"][name], each, atol=1e-3, rtol=1e-2) for name, each in before.items()
    )


@pytest.mark.slow
@every_case_slowly
def test_a_run_that_was_stopped_in_an_epoch_ends_as_a_plain_loop_and_predicts_alike_after_a_reload(
    case: str, models: Path, project: None
) -> None:
    rows_of_window = 2 if case in NORMALISED else 1
    recipe = recipe_of(case, models, train=f"{{updates: 4, global_batch: {rows_of_window}, seed: 3}}")
    setup, task = recipe_setup(recipe)
    step = setup.step()
    for window in setup.loader().windows(0, 4):
        step(window)
    stopped = train_recipe(recipe, RunOptions(stop=AfterWindows(1)))
    assert (stopped.status, stopped.updates) == ("stopped", 1)
    whole = resume_run(str(stopped.run_dir))
    check_weights(whole.run_dir, task.delivered(step.model).state_dict())
    rows = task.example_rows if case.startswith("forecasting") else task.example_rows[:2]  # a series is whole
    here, there = whole.predict(rows), load(whole.run_dir).predict(rows)
    assert here and repr(here) == repr(there)
    Path("new.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert predict_file(whole.run_dir, "new.jsonl", Path("out.csv"))["rows"] == len(here)


@every_case
def test_rows_that_cannot_be_read_end_the_run_or_are_left_out_and_counted(
    case: str, models: Path, project: None
) -> None:
    line = len(CASES[case].rows) + 1
    recipe = recipe_of(case, models, added="{broken\n")
    with pytest.raises(DataError, match=rf"rows\.jsonl:{line}"):
        recipe_setup(recipe)
    _, task = recipe_setup(recipe_of(case, models, "data.bad_rows=skip", added="{broken\n"))
    assert sum(task.data["skipped"].values()) == 1


class _Here:
    """In place of the planner's process: what is asked is answered in this one."""

    def run(self, function: Callable[..., Answer], *asked: Any, **_settings: Any) -> Answer:
        return function(*asked)


@every_case_slowly
def test_a_plan_without_numbers_has_the_memory_that_updates_of_the_largest_window_take(
    case: str, models: Path, project: None
) -> None:
    recipe = recipe_of(case, models, "plan.micro_batch=null")
    with own_garbage():  # what other tests have left is not looked at each time
        answer = plan_recipe(recipe, Target(device="cpu", search=False), cast(Worker, _Here()))
    setup, _ = recipe_setup(recipe)
    setup.step()  # fills in what a loss compares with
    largest, _ = setup.loader().worst_window()

    def two_updates() -> None:
        step = setup.step()
        for _ in range(2):
            step(copy.deepcopy(largest))  # which counts, as the model of the step does

    bound = 0.05 if case in CONVOLVED else 0.001
    with own_garbage():
        peak = profiled_peak(two_updates)
    assert answer.prediction.peak_bytes == pytest.approx(peak, rel=bound)


@pytest.mark.slow
@every_case
def test_a_try_by_command_says_how_it_ended(
    case: str, models: Path, project: None, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe_of(case, models)
    assert main(["train", "recipe.yaml", "--fast-dev-run", "--json", "--quiet"]) == 0
    ended: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert ended["status"] == "finished"
    assert ended["updates"] in (1, 2)  # one where the rows of the case are one window
