"""Runs that are cut to what fits into a time."""

from __future__ import annotations

import copy
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor, nn

import snugfit as sf
from snugfit.cli.app import main
from snugfit.core.batch import Batch
from snugfit.errors import SettingError
from snugfit.run import launch
from snugfit.run.call_options import RunOptions
from snugfit.run.from_recipe import resume_run, train_recipe
from snugfit.run.time_limit import USED, Costs, Length
from snugfit.tracking.spool import read_events
from snugfit.units import parse_seconds
from tests.unit.run.test_from_recipe import project, recipe  # noqa: F401 - a fixture
from tests.unit.run.training.runs import points, small_model

UPDATE, EVALUATION = 2.0, 3.0


class Clock:
    """A clock that stands still but for updates and evaluations of a set length."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.update, self.forwards = 1000.0, UPDATE, 0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)

    def forward(self, model: nn.Module, batch: Batch) -> Tensor:
        self.forwards += 1
        self.now += self.update if model.training else EVALUATION
        return model(batch[0])


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def plain_forward(model: nn.Module, batch: Batch) -> Tensor:
    return model(batch[0])


def train(model: nn.Module, forward: Any, **settings: Any) -> sf.RunResult:
    given: dict[str, Any] = {
        "optimizer": sf.SGD(learning_rate=0.2),
        "techniques": [sf.Cosine(warmup=0.1)],
        "validation": points(10, seed=3),
        "epochs": 50,
        "global_batch": 10,
        "evaluate_batch": 10,
        "evaluate_every": 5,
        "device": "cpu",
        "track": False,
        "display": None,
        "forward": forward,
    }
    return sf.train(model, points(40), **{**given, **settings})


def times(result: sf.RunResult) -> list[dict[str, Any]]:
    return [
        event for event in read_events(Path(str(result.run_dir)) / "events.jsonl") if event["event"] == "time"
    ]


@pytest.mark.parametrize("updates", [1, 4, 5, 9, 10, 57])
def test_the_longest_run_that_fits_is_that_of_counting_one_by_one(updates: int) -> None:
    costs = Costs(start=1.5, update=2.0, evaluation=3.0, checkpoint=0.25, evaluate_every=5, save_every=4)

    def counted(last: int) -> float:
        seconds = 1.5
        for number in range(1, last + 1):
            seconds += 2.0
            seconds += 3.0 if number % 5 == 0 or number == last else 0.0
            seconds += 0.25 if number % 4 == 0 or number == last else 0.0
        return seconds

    assert costs.seconds(updates) == counted(updates)
    assert costs.updates_within(counted(updates), 1000) == max(
        each for each in range(1, 200) if counted(each) <= counted(updates)
    )
    assert costs.updates_within(4.0, 1000) == 0
    assert costs.updates_within(1e9, 60) == 60


def test_a_run_by_a_fake_clock_ends_in_time_and_uses_it(clock: Clock, tmp_path: Path) -> None:
    begun, limit = clock.now, 400.0
    result = train(small_model(), clock.forward, time="400s", output=tmp_path)
    took = clock.now - begun
    assert result.status == "finished"
    assert (1 - 2 * (1 - USED)) * limit < took <= limit
    assert result.updates < 200
    (event,) = times(result)
    assert (event["updates"], event["asked_updates"]) == (result.updates, 200)
    assert event["costs"]["update"] == UPDATE
    assert event["costs"]["evaluation"] == EVALUATION
    assert f"{result.updates} of 200 updates fit into 6m 40s" in event["message"]
    assert [each.name for each in tmp_path.rglob("*") if each.is_dir() and each.name.startswith("2")] == [
        Path(str(result.run_dir)).name
    ], "the rehearsal's folder is gone"


@pytest.mark.slow
def test_the_run_is_bit_for_bit_the_one_of_so_many_updates(clock: Clock, tmp_path: Path) -> None:
    timed, plain = small_model(), small_model()
    plain.load_state_dict(copy.deepcopy(timed.state_dict()))
    result = train(timed, clock.forward, time=200, output=tmp_path / "timed")
    train(plain, plain_forward, updates=result.updates, output=tmp_path / "plain")
    assert 5 < result.updates < 200
    for name, tensor in plain.state_dict().items():
        assert torch.equal(timed.state_dict()[name], tensor), name


@pytest.mark.slow
def test_what_a_slower_device_leaves_goes_on_with_resume_to_the_same_weights(
    clock: Clock, tmp_path: Path
) -> None:
    def slower(result: Any) -> None:
        clock.update = 3 * UPDATE

    timed, again, plain = small_model(), small_model(), small_model()
    settings = {"time": "200s", "output": tmp_path / "timed"}
    stopped = train(timed, clock.forward, on_update=slower, **settings)
    assert (stopped.status, stopped.stop_reason) == ("stopped", "stopped after 3m 20s as asked")
    (event,) = times(stopped)
    clock.update, before = UPDATE, clock.forwards
    finished = train(again, clock.forward, resume=stopped.run_dir, **settings)
    assert (finished.status, finished.updates) == ("finished", event["updates"])
    assert clock.forwards - before < event["updates"], "nothing is measured again"
    assert len(times(finished)) == 1
    train(plain, plain_forward, updates=event["updates"], output=tmp_path / "plain")
    for name, tensor in plain.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name


def test_a_run_that_fits_whole_stays_as_it_is(clock: Clock, tmp_path: Path) -> None:
    result = train(small_model(), clock.forward, time="1d", epochs=3, output=tmp_path)
    assert result.updates == 12
    (event,) = times(result)
    assert "all 12 updates fit into 24h 00m" in event["message"]
    goes_on = train(small_model(), clock.forward, epochs=3, output=tmp_path, resume=result.run_dir)
    assert goes_on.updates == 12, "its length is that of its settings"


def test_a_time_in_which_no_update_fits_is_refused_with_the_time_that_would_do(
    clock: Clock, tmp_path: Path
) -> None:
    with pytest.raises(SettingError, match=r"^time: 10s is too short: one update.* end after \d+s") as error:
        train(small_model(), clock.forward, time=10, output=tmp_path / "runs")
    assert "Give more time" in str(error.value)
    assert not list((tmp_path / "runs").rglob("*")), "nothing is left"


def test_a_time_is_refused_where_it_comes_too_late_or_is_none(clock: Clock, tmp_path: Path) -> None:
    stopped = train(small_model(), plain_forward, stop_after_seconds=0.0, output=tmp_path)
    with pytest.raises(SettingError, match="^time: the run that is resumed began without it"):
        train(small_model(), clock.forward, time="1h", resume=stopped.run_dir, output=tmp_path)
    with pytest.raises(SettingError, match="^time: 'soon' cannot be read"):
        train(small_model(), clock.forward, time="soon", output=tmp_path)
    with pytest.raises(SettingError, match="^time: must be seconds"):
        train(small_model(), clock.forward, time=[3], output=tmp_path)
    with pytest.raises(SettingError, match="^--time: shortens a run"):
        RunOptions(time_seconds=5.0, fast_dev_run=True)


def test_a_run_that_writes_nothing_is_cut_too_and_hooks_see_no_rehearsal(clock: Clock) -> None:
    seen: list[Any] = []
    result = train(small_model(), clock.forward, time="200s", output=None, on_update=seen.append)
    assert 5 < result.updates < 200
    assert len(seen) == result.updates


@pytest.mark.slow
def test_a_recipe_keeps_the_length_that_was_decided_and_resumes_with_it(
    project: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    asked = recipe(project, tmp_path, "train.epochs=100000")
    stopped = train_recipe(asked, RunOptions(time_seconds=8.0, stop_after_seconds=1e-6))
    (event,) = times(stopped)
    assert stopped.status == "stopped"
    assert 0 < event["updates"] < event["asked_updates"]
    kept = yaml.safe_load((Path(str(stopped.run_dir)) / "recipe.yaml").read_text())
    assert (kept["train"]["updates"], kept["train"]["epochs"]) == (event["updates"], None)
    run = next(
        each for each in read_events(Path(str(stopped.run_dir)) / "events.jsonl") if each["event"] == "run"
    )
    assert run["total_updates"] == run["recipe"]["train"]["updates"] == event["updates"]
    again = resume_run(str(stopped.run_dir), RunOptions(stop_after_seconds=1e-6))
    assert (again.status, again.updates) == ("stopped", 2), "its identity is the one that it began with"


def test_processes_get_what_is_left_of_both_times() -> None:
    began = time.monotonic() - 3.0
    options = launch._until(RunOptions(10.0, 20.0, started=began))
    assert options[::2] == ["--stop-after", "--time"]
    assert parse_seconds(options[1]) <= 7.0
    assert 7.0 < parse_seconds(options[3]) <= 17.0


def test_the_command_takes_a_time_and_refuses_what_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "my.yaml", "--time", "soon"]) == 2
    assert "--time: 'soon' cannot be read" in capsys.readouterr().err


def test_the_decision_is_one_line() -> None:
    costs = Costs(1.0, 0.25, 12.0, 1.5, 100, 100)
    line = Length(800, 1000, 3600.0, costs).message()
    assert os.linesep not in line
    assert line == (
        "800 of 1,000 updates fit into 1h 00m, and the schedule is for those: they take about 5m 09s "
        "(250ms an update, 12s an evaluation, 1.5s a checkpoint)"
    )
