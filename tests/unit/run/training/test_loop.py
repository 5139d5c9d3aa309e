"""The loop: what it evaluates, saves and tells, and what it refuses to resume."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from snugfit.core.job import Job, Plan
from snugfit.data.order import Order
from snugfit.errors import DataError, RunFolderError, SettingError, TrainingFailed
from snugfit.report.page import write_report
from snugfit.results.run_folder import RunFolder
from snugfit.run.training.assemble import check_settings
from snugfit.run.training.loop import Training
from snugfit.techniques.learning.adamw import AdamW
from snugfit.techniques.learning.ema import EMA
from snugfit.techniques.learning.layer_rates import LayerRates
from snugfit.techniques.learning.linear import Linear
from snugfit.techniques.learning.plateau import Plateau
from snugfit.techniques.learning.sgd import SGD
from snugfit.tracking.spool import read_events
from snugfit.tracking.translate import to_batch
from tests.unit.run.training.runs import (
    Never,
    SeenLoader,
    StopAt,
    events,
    finish,
    make_training,
    points,
    resumed,
    small_model,
    stop_at,
    told,
)

VALIDATION = points(5, seed=1)


def windows_of(training: Any, kind: str) -> list[int]:
    return [event["window"] for event in events(training, kind)]


@pytest.mark.parametrize(
    ("settings", "evaluated", "saved"),
    [
        ({}, [3, 6], [3, 6]),
        ({"evaluate_every": 2}, [2, 4, 6], [2, 4, 6]),
        ({"evaluate_every": 4}, [4, 6], [4, 6]),
        ({"checkpoint_every": 2}, [3, 6], [2, 4, 6]),
        ({"checkpoint_every": 4}, [3, 6], [4, 6]),
        ({"evaluate_every": 100}, [6], [6]),
    ],
)
def test_evaluations_and_checkpoints_come_when_asked_and_at_the_end(
    tmp_path: Path, settings: dict[str, int], evaluated: list[int], saved: list[int]
) -> None:
    training = make_training(tmp_path, validation=VALIDATION, **settings)
    finish(training)
    assert (windows_of(training, "evaluation"), windows_of(training, "checkpoint")) == (evaluated, saved)
    kept = sorted(path.name for path in training.folder.checkpoints.iterdir())
    assert kept == [f"update-{window:08d}" for window in saved[-2:]]


@pytest.mark.parametrize(("length", "windows"), [({"epochs": 2.5}, 8), ({"updates": 4}, 4)])
def test_a_run_is_as_long_as_asked(tmp_path: Path, length: dict[str, Any], windows: int) -> None:
    result = finish(make_training(tmp_path, **length))
    assert result.updates == windows
    assert result.epochs == pytest.approx(windows / 3)


def test_an_update_tells_loss_rate_and_speed_after_the_window(tmp_path: Path) -> None:
    training = make_training(tmp_path, techniques=(AdamW(learning_rate=0.01),), epochs=1.0)
    finish(training)
    told_updates = events(training, "update")
    assert [(e["update"], e["window"], e["epoch"]) for e in told_updates] == [
        (1, 1, pytest.approx(1 / 3)),
        (2, 2, pytest.approx(2 / 3)),
        (3, 3, 1.0),
    ]
    first = told_updates[0]["metrics"]
    assert first["learning_rate"] == 0.01
    assert first["examples_per_second"] > 0
    assert first["memory_bytes"] > 1e6


def test_a_display_sees_every_event_of_the_spool_and_changes_nothing(tmp_path: Path) -> None:
    shown: list[dict[str, Any]] = []
    training = make_training(tmp_path / "shown", display=shown.append, validation=VALIDATION)
    finish(training)
    plain = make_training(tmp_path / "plain", validation=VALIDATION)
    finish(plain)
    assert [event["event"] for event in shown if event["event"] != "doing"] == [
        event["event"] for event in events(training, "update", "evaluation", "checkpoint")
    ]
    assert told(plain) == told(training)


def test_a_resume_is_told_with_its_place_and_what_was_passed_over(tmp_path: Path) -> None:
    training = make_training(tmp_path, validation=VALIDATION)
    stop_at(training, 5)
    (training.folder.checkpoints / "update-00000005/run.json").unlink()
    again = resumed(make_training(tmp_path, validation=VALIDATION))
    (warning,) = events(again, "warning")
    assert warning["message"].startswith("checkpoint passed over, it is damaged: update-00000005: ")
    (place,) = events(again, "resume")
    assert (place["update"], place["window"]) == (3, 3)


def test_a_finished_run_that_is_resumed_is_finished_with_the_same_result(tmp_path: Path) -> None:
    first = finish(make_training(tmp_path, validation=VALIDATION))
    again = finish(resumed(make_training(tmp_path, validation=VALIDATION)))
    assert (again.status, again.updates, again.best, again.last) == ("finished", 6, first.best, first.last)


def test_a_run_without_a_checkpoint_cannot_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="no valid checkpoint to go on from"):
        make_training(tmp_path).restore()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"identity": {"seed": "b"}},
            r"^resume: not what it was when this run began\. seed: 'a' then, 'b' now\.",
        ),
        ({"identity": {}}, r"^resume: .* seed: 'a' then, None now"),
        ({"techniques": (SGD(learning_rate=0.1), EMA())}, "^techniques: the state has "),
        ({"model": nn.Linear(2, 3)}, "^resume: .* model: class "),
        ({"model": small_model().double()}, "^model: its parameters are not those"),
    ],
)
def test_a_checkpoint_of_other_data_or_another_model_is_refused_and_nothing_is_loaded(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    stop_at(make_training(tmp_path, identity={"seed": "a"}), 2)
    other = make_training(tmp_path, **{"identity": {"seed": "a"}, **change})
    before = [parameter.detach().clone() for parameter in other.step.parameters]
    with pytest.raises((RunFolderError, SettingError), match=message):
        other.restore()
    assert all(torch.equal(old, new) for old, new in zip(before, other.step.parameters, strict=True))
    assert other.step.progress.windows == 0


def test_a_stop_at_the_last_window_is_the_end(tmp_path: Path) -> None:
    training = make_training(tmp_path)
    assert training.run(StopAt(training, 6)).status == "finished"  # type: ignore[arg-type]


@pytest.mark.parametrize(("plan", "passes"), [(Plan(), [4, 4]), (Plan(micro_batch=3), [3, 3, 2])])
def test_no_more_rows_are_scored_at_once_than_an_update_has(
    tmp_path: Path, plan: Plan, passes: list[int]
) -> None:
    training = make_training(tmp_path, validation=points(8), evaluate_batch=8, epochs=1.0, plan=plan)
    at_once: list[int] = []
    training.step.model.register_forward_pre_hook(
        lambda module, args: None if module.training else at_once.append(len(args[0]))
    )
    training.run(Never())
    assert at_once[-len(passes) :] == passes
    assert max(at_once) == passes[0]


def test_an_evaluation_stands_beside_the_mean_loss_since_the_one_before_across_a_stop(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "validation": VALIDATION,
        "evaluate_every": 3,
        "train": points(24, poison=[5]),
    }
    stop_at(make_training(tmp_path, **settings), 5)
    training = resumed(make_training(tmp_path, **settings))
    finish(training)
    losses = {
        event["window"]: event["metrics"]["loss"]
        for event in events(training, "update")
        if event["applied"]  # one window has a number that is none
    }
    evaluated = {event["window"]: event["train_loss"] for event in events(training, "evaluation")}
    assert len(losses) == 10 and [*evaluated] == [3, 6, 9, 12]
    for window, mean in evaluated.items():
        own = [losses[each] for each in range(window - 2, window + 1) if each in losses]
        assert mean == pytest.approx(sum(own) / len(own), rel=1e-12)


def test_a_stop_between_two_evaluations_is_saved_and_not_evaluated(tmp_path: Path) -> None:
    training = make_training(tmp_path, validation=VALIDATION)
    stop_at(training, 4)
    assert windows_of(training, "evaluation") == [3]
    assert windows_of(training, "checkpoint") == [3, 4]


FIRST = Order(12, global_batch=4, seed=0).window(0)[0][1]


class Mortal(list[Any]):
    """Examples of which one, in the first window, kills the worker that reads it."""

    def __getitem__(self, index: Any) -> Any:
        if index == FIRST and torch.utils.data.get_worker_info() is not None:
            signal.raise_signal(signal.SIGKILL)
        return super().__getitem__(index)


@pytest.fixture
def mortal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    # torch looks every 5 seconds whether a worker is alive
    look = torch.utils.data.dataloader._MultiProcessingDataLoaderIter._try_get_data
    monkeypatch.setattr(look, "__defaults__", (0.2,))
    return make_training(tmp_path, train=Mortal(points(12)), plan=Plan(num_workers=1))


def test_a_killed_worker_fails_the_run(mortal: Any) -> None:
    with pytest.raises(TrainingFailed, match="a worker process failed"):
        finish(mortal)


def test_a_signal_that_took_the_workers_too_stops_the_run_at_the_boundary(mortal: Any) -> None:
    class Asked(Never):
        reason = "received SIGTERM"
        asked = True

    result = mortal.run(Asked())  # the worker is dead before its first window
    assert (result.status, result.stop_reason) == ("stopped", "received SIGTERM")
    assert result.updates == mortal.step.progress.windows == 1


def test_an_error_in_the_training_closes_the_loader(tmp_path: Path) -> None:
    closed = []

    class Watched(SeenLoader):
        def windows(self, *args: Any, **kwargs: Any) -> Any:
            try:
                yield from self.inner.windows(*args, **kwargs)
            finally:
                closed.append(True)

    training = make_training(tmp_path)
    training.loader = Watched(training.loader.inner)  # type: ignore[attr-defined,assignment]
    training.step._forward = lambda model, data: 1 / 0
    kept = None
    try:
        finish(training)
    except ZeroDivisionError as error:
        kept = error  # as a notebook keeps the last error, and with it every frame
    assert kept is not None
    assert closed == [True]


def test_an_example_that_cannot_be_loaded_is_the_users_error(tmp_path: Path) -> None:
    class NotAList:
        def __len__(self) -> int:
            return 12

        def __getitem__(self, index: int) -> Any:
            raise OSError("disk gone")

    with pytest.raises(DataError, match=r"^data: row \d+ \(training\) cannot be loaded: OSError: disk gone"):
        finish(make_training(tmp_path, train=NotAList()))


@pytest.mark.parametrize("in_the_way", ["file", "file in the middle"])
def test_a_run_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path, in_the_way: str) -> None:
    (tmp_path / "runs").write_text("a file")
    output = tmp_path / "runs" if in_the_way == "file" else tmp_path / "runs/deeper"
    with pytest.raises(
        RunFolderError, match=r"^output: the run's folder .* cannot be written: .* Choose another `output`"
    ):
        RunFolder.create(output, "name")


def test_what_is_no_run_folder_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="no such run folder"):
        RunFolder.open(tmp_path / "nowhere")
    with pytest.raises(RunFolderError, match=r"it has no events\.jsonl"):
        RunFolder.open(tmp_path)


def test_a_discarded_folder_leaves_other_runs_of_its_name_alone(tmp_path: Path) -> None:
    first, second = RunFolder.create(tmp_path, "name"), RunFolder.create(tmp_path, "name")
    first.discard()
    assert list((tmp_path / "name").iterdir()) == [second.path]
    second.discard()
    assert list(tmp_path.iterdir()) == []


def test_json_in_the_folder_is_whole_or_a_clear_error(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.write_json("data.json", {"train.csv": "ab"})
    assert folder.read_json("data.json") == {"train.csv": "ab"}
    (tmp_path / "data.json").write_text("{")
    with pytest.raises(RunFolderError, match=r"data\.json: cannot be read"):
        folder.read_json("data.json")


def rates_told(training: Any) -> list[dict[str, float]]:
    return [
        {name: value for name, value in event["metrics"].items() if name.startswith("learning_rate")}
        for event in events(training, "update")
    ]


def test_groups_of_one_rate_are_told_as_one(tmp_path: Path) -> None:
    training = make_training(tmp_path, techniques=(SGD(learning_rate=0.1), Linear()), epochs=1.0)
    finish(training)
    assert len(training.step.optimizer.param_groups) == 2
    assert rates_told(training) == [{"learning_rate": pytest.approx(0.1 * n / 3)} for n in (3, 2, 1)]


def test_the_rate_of_each_group_is_told_where_they_differ(tmp_path: Path) -> None:
    techniques = (SGD(learning_rate=0.1), Linear(), LayerRates(decay=0.5))
    training = make_training(tmp_path, techniques=techniques, epochs=1.0)
    finish(training)
    for told_rates, factor in zip(rates_told(training), (1, 2 / 3, 1 / 3), strict=True):
        assert told_rates == {
            "learning_rate": pytest.approx(0.1 * factor),
            "learning_rate/layer 1 decay": pytest.approx(0.05 * factor),
            "learning_rate/layer 2 decay": pytest.approx(0.1 * factor),
            "learning_rate/layer 1 no_decay": pytest.approx(0.05 * factor),
            "learning_rate/layer 2 no_decay": pytest.approx(0.1 * factor),
        }


def test_each_group_has_a_curve_in_the_report_and_a_metric_of_its_own_in_the_tracker(tmp_path: Path) -> None:
    training = make_training(tmp_path, techniques=(SGD(), LayerRates(decay=0.5)), epochs=1.0)
    finish(training)
    batch, malformed = to_batch(read_events(training.folder.events))
    names = {metric.name for metric in batch.metrics}
    assert malformed == 0
    # no name is a folder of another: a file store could not hold both
    assert {"train/learning_rate", "train/learning_rate.layer 1 decay"} <= names
    assert not any(other.startswith(f"{name}/") for name in names for other in names)
    page = write_report(training.folder.path).read_text(encoding="utf-8")
    assert "layer 1 decay" in page


PLATEAU = (SGD(learning_rate=0.1), Plateau(factor=0.5, patience=1, threshold=0.05, warmup=2))


SETTINGS: dict[str, Any] = {
    "techniques": PLATEAU,
    "validation": VALIDATION,
    "evaluate_every": 1,
    "epochs": 4.0,
}


@pytest.fixture(scope="module")
def lowered(tmp_path_factory: pytest.TempPathFactory) -> Training:
    """A run that was never stopped, whose rate was lowered several times."""
    whole = make_training(tmp_path_factory.mktemp("whole"), **SETTINGS)
    finish(whole)
    rates = [rate["learning_rate"] for rate in rates_told(whole)]
    assert rates[0] == 0.05 and len(set(rates[1:])) >= 3
    return whole


@pytest.mark.slow
@pytest.mark.parametrize("stop", [1, 3, 4, 6, 7, 11])
def test_a_resumed_run_lowers_its_rate_on_the_same_plateau(
    tmp_path: Path, lowered: Training, stop: int
) -> None:
    stop_at(make_training(tmp_path, **SETTINGS), stop)
    again = resumed(make_training(tmp_path, model=small_model(seed=2), **SETTINGS))
    finish(again)
    assert told(again) == told(lowered)
    assert all(
        torch.equal(one, other)
        for one, other in zip(again.step.parameters, lowered.step.parameters, strict=True)
    )


@pytest.mark.parametrize(
    ("metric", "metrics", "validated", "words"),
    [
        (
            "accuracy",
            {},
            True,
            "plateau: looks at 'accuracy', which is not among the evaluated .*Known: loss",
        ),
        ("max:acuracy", {"accuracy": "accuracy"}, True, "looks at 'acuracy'.*Did you mean 'accuracy'"),
        ("loss", {}, False, "plateau: looks at 'loss' .* no data to evaluate on. Give data.validation, or"),
    ],
)
def test_a_technique_that_looks_at_what_is_not_evaluated_is_refused(
    metric: str, metrics: dict[str, Any], validated: bool, words: str
) -> None:
    with pytest.raises(SettingError, match=words):
        check_settings(Job(), Plan(), [Plateau(metric=metric)], metrics, validated=validated)


def test_a_technique_that_looks_at_what_is_evaluated_is_taken() -> None:
    for metric in ("loss", "accuracy"):
        check_settings(Job(), Plan(), [Plateau(metric=metric)], {"accuracy": "accuracy"}, validated=True)
