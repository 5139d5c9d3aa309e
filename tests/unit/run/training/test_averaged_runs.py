"""Runs whose averaged weights are evaluated: what is scored is what is saved, and scoring changes nothing."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from snugfit.core.batch import Batch
from snugfit.core.job import Plan
from snugfit.core.technique import Technique
from snugfit.models.bundle import load_bundle, read_meta
from snugfit.run.training.loop import Training
from snugfit.run.training.result import RunResult
from snugfit.step.evaluate import Scored, evaluate
from snugfit.step.micro_batch_sizes import BATCH_NORM
from snugfit.techniques.learning.adamw import AdamW
from snugfit.techniques.learning.ema import EMA
from snugfit.techniques.learning.schedule_free import ScheduleFree
from snugfit.techniques.learning.sgd import SGD
from snugfit.techniques.learning.swa import SWA
from tests.laws.problems import differences
from tests.laws.problems import saved as copied
from tests.unit.run.training.runs import (
    CLASSES,
    INPUTS,
    events,
    finish,
    make_training,
    points,
    resumed,
    stop_at,
    told,
)

WINDOWS = 12
AVERAGED: dict[str, tuple[Technique, ...]] = {
    "ema": (SGD(learning_rate=0.5), EMA(decay=0.9)),
    "swa": (SGD(learning_rate=0.5), SWA(start=5, every=2, norm_windows=3)),
    "swa with adam": (AdamW(learning_rate=0.1), SWA(start=0.4, norm_windows=100)),
    "schedule_free": (ScheduleFree(learning_rate=0.1, warmup=3, norm_windows=2),),
}


class Counting(nn.Module):
    """Passes on what it gets, and counts the rows that came by in training, as some models count their inputs."""

    rows: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros((), dtype=torch.int64))

    def forward(self, inputs: Tensor) -> Tensor:
        if self.training:
            self.rows += len(inputs)
        return inputs


def normed(seed: int = 1) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Linear(INPUTS, 8),
            nn.BatchNorm1d(8),
            nn.Dropout(0.2),
            Counting(),
            nn.Tanh(),
            nn.Linear(8, CLASSES),
        )


def training(folder: Path, name: str, *, seed: int = 1, **settings: Any) -> Training:
    given = {"updates": WINDOWS, "evaluate_every": 2, "plan": Plan(micro_batch=4), **settings}
    return make_training(
        folder,
        model=normed(seed),
        train=points(20),
        validation=points(9, seed=1),
        techniques=AVERAGED[name],
        global_batch=8,
        **given,
    )


def saved(run: Training) -> dict[str, Any]:
    """The trained weights, averages and all else but the statistics of the last settling, which are no part of training."""
    state = copied(run.step)
    for technique in state["techniques"].values():
        technique.pop("norms", None)
    return state


@pytest.mark.parametrize("name", AVERAGED)
def test_the_best_model_loaded_again_scores_what_was_reported(name: str, tmp_path: Path) -> None:
    run = training(tmp_path, name)
    result = finish(run)
    model, meta, _ = load_bundle(run.folder.best, model=normed(seed=2))
    batches = [Batch.of((torch.stack(x), torch.stack(y))) for x, y in [zip(*points(9, seed=1), strict=True)]]
    scored = Scored(model, torch.device("cpu"), lambda batch: model(batch.data[0]), run.step.user_loss)
    assert result.best is not None
    assert meta["weights"] == result.best["weights"] == name.partition(" ")[0]
    assert meta["update"] == result.best["update"]
    # float32 in other batches
    assert evaluate(scored, batches, {})["loss"] == pytest.approx(result.best["metrics"]["loss"], rel=1e-6)


@pytest.mark.parametrize(("name", "windows"), [("swa", 3), ("swa with adam", 3), ("schedule_free", 2)])
def test_the_saved_statistics_are_those_of_the_saved_weights_over_training_windows(
    name: str, windows: int, tmp_path: Path
) -> None:
    run = training(tmp_path, name, evaluate_every=WINDOWS)
    finish(run)
    model, _, _ = load_bundle(run.folder.best, model=normed(seed=2))
    found, raw = copy.deepcopy(dict(model.named_buffers())), run.step.model
    batches = [window.data[0] for window in run.loader.windows(0, windows)]
    update_bn([part for batch in batches for part in batch.split(4)], model)
    assert torch.equal(found["1.running_mean"], model[1].running_mean)
    assert torch.equal(found["1.running_var"], model[1].running_var)
    assert not torch.allclose(raw[1].running_mean, model[1].running_mean, rtol=1e-3)
    assert found["3.rows"] == raw[3].rows, "other buffers are the model's"


@pytest.mark.slow
@pytest.mark.parametrize("name", AVERAGED)
def test_without_validation_the_last_average_is_kept_with_its_statistics(name: str, tmp_path: Path) -> None:
    with_validation, without = training(tmp_path / "one", name), training(tmp_path / "other", name)
    without.validation = None
    finish(with_validation), finish(without)
    for run in (with_validation, without):  # the last weights of both
        run.step.settle(lambda run=run: run.loader.windows(0, 3))  # type: ignore[misc]
    with with_validation.step.averaged():
        expected = {key: value.clone() for key, value in with_validation.step.model.state_dict().items()}
    model, meta, _ = load_bundle(without.folder.best, model=normed(seed=2))
    assert not differences(dict(model.state_dict()), expected)
    assert meta["weights"] == name.partition(" ")[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", AVERAGED)
def test_evaluating_often_or_never_trains_the_same_weights(name: str, tmp_path: Path) -> None:
    often, never = training(tmp_path / "often", name, evaluate_every=1), training(tmp_path / "never", name)
    never.evaluate = lambda stop: None  # type: ignore[method-assign, assignment]
    finish(often), finish(never)
    assert len(events(often, "evaluation")) == WINDOWS
    assert not events(never, "evaluation")
    assert not differences(saved(often), saved(never))


@pytest.fixture(scope="module", params=AVERAGED)
def uninterrupted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A name of `AVERAGED`, its run, and what came of it."""
    whole = training(tmp_path_factory.mktemp("whole"), request.param)
    return request.param, whole, finish(whole)


@pytest.mark.parametrize("stop", [6, 7])
def test_a_run_stopped_while_averaging_is_the_uninterrupted_one(
    uninterrupted: tuple[str, Training, RunResult], stop: int, tmp_path: Path
) -> None:
    """Evaluated after even windows: 7 lies between a settling and the next evaluation."""
    name, whole, result = uninterrupted
    stop_at(training(tmp_path, name), stop)
    torch.manual_seed(stop)
    second = resumed(training(tmp_path, name, seed=2))
    again = finish(second)
    assert told(second) == told(whole)
    assert not differences(copied(whole.step), copied(second.step))
    assert second.watch.state_dict() == whole.watch.state_dict()
    assert (again.best, again.last) == (result.best, result.last)
    bests = [load_bundle(run.folder.best, model=normed())[0].state_dict() for run in (whole, second)]
    assert not differences(*map(dict, bests))


def test_a_stop_keeps_the_statistics_of_the_last_settling(tmp_path: Path) -> None:
    run = training(tmp_path, "swa")
    stop_at(run, 7)
    before = copied(run.step)["techniques"]["swa"]["norms"]
    again = resumed(training(tmp_path, "swa", seed=2))
    assert set(before) == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    assert not differences(before, copied(again.step)["techniques"]["swa"]["norms"])


def warnings_of_weights(run: Training) -> list[dict[str, Any]]:
    """Its warnings, but for that of batch norm in micro-batches."""
    return [event for event in events(run, "warning") if not event["message"].startswith(BATCH_NORM)]


def test_raw_weights_are_evaluated_until_the_average_begins_and_best_is_of_one_kind(tmp_path: Path) -> None:
    run = training(tmp_path, "swa")
    result = finish(run)
    told = events(run, "evaluation")
    assert [event["weights"] for event in told] == ["raw", "raw", "swa", "swa", "swa", "swa"]
    assert told[2]["best"], "the first average is kept, whatever the raw weights scored"
    assert result.best is not None and result.best["weights"] == "swa"
    averaged = [event for event in told if event["weights"] == "swa"]
    assert result.best["metrics"] == min(averaged, key=lambda event: event["metrics"]["loss"])["metrics"]
    assert read_meta(run.folder.best)["weights"] == "swa"
    (warning,) = warnings_of_weights(run)
    raw = min(event["metrics"]["loss"] for event in told[:2])
    assert warning["message"].startswith("from update 6 on the weights of 'swa' are evaluated")
    assert f"loss {raw:.4g} at update" in warning["message"]


def test_an_average_from_the_first_evaluation_on_warns_of_nothing(tmp_path: Path) -> None:
    for name in ("ema", "schedule_free"):
        run = training(tmp_path / name, name)
        finish(run)
        assert not warnings_of_weights(run)


def test_patience_does_not_count_raw_evaluations_before_the_average(tmp_path: Path) -> None:
    calls: list[int] = []

    def worsening(outputs: Any, data: Any) -> Tensor:
        calls.append(1)
        return torch.full((len(data[1]),), -float(len(calls)))

    settings: dict[str, Any] = {"metrics": {"mine": worsening}, "best": "max:mine", "patience": 2}
    run = training(tmp_path / "swa", "swa", evaluate_every=1, **settings)
    # averaging begins at update 5, whose evaluation is the first to compare with
    assert finish(run).updates == 7
    calls.clear()
    assert finish(training(tmp_path / "ema", "ema", evaluate_every=1, **settings)).updates == 3
