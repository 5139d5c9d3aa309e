"""The best evaluation, its direction, and when to stop early."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from snugfit.core.job import Job
from snugfit.errors import SettingError
from snugfit.run.training.best import Watch
from snugfit.step.metrics.metric import monitored
from snugfit.techniques.learning.ema import EMA
from snugfit.techniques.learning.sgd import SGD
from tests.unit.run.training.runs import events, finish, make_training, points, resumed, small_model, stop_at

NAN, INF = math.nan, math.inf


def best_of(values: list[float], best: str) -> int | None:
    """The update whose evaluation is the best, when these are observed one after another."""
    monitor = monitored(best, [best.rpartition(":")[2]])
    watch = Watch()
    for update, value in enumerate(values, 1):
        watch.observe(update, {monitor[0]: value}, monitor)
    return watch.best_update


@pytest.mark.parametrize(
    ("values", "best", "expected"),
    [
        ([0.1, 0.3, 0.2], "accuracy", 2),
        ([0.1, 0.3, 0.2], "macro_f1", 2),
        ([0.3, 0.1, 0.2], "loss", 2),
        ([0.3, 0.1, 0.2], "perplexity", 2),
        ([0.3, 0.1, 0.2], "mse", 2),
        ([0.3, 0.1, 0.2], "max:mine", 1),
        ([0.3, 0.1, 0.2], "min:mine", 2),
        ([0.3, 0.1, 0.2], "max:loss", 1),
        ([0.2, 0.2, 0.2], "accuracy", 1),  # the first of equals
        ([NAN, 0.9, NAN], "loss", 2),
        ([NAN, 0.1, NAN], "accuracy", 2),
        ([0.5, NAN, 0.6], "loss", 1),
        ([NAN, NAN], "loss", 1),  # something has to be saved
        ([INF, 5.0], "loss", 2),
        ([INF, NAN], "loss", 1),
    ],
)
def test_the_best_goes_by_the_metric_and_its_direction_and_nan_is_never_better(
    values: list[float], best: str, expected: int
) -> None:
    assert best_of(values, best) == expected


def test_of_equal_scores_the_best_is_that_with_the_lower_loss() -> None:
    monitor = monitored("accuracy", ["accuracy"])
    watch = Watch()
    scores = [(0.5, 0.9), (1.0, 0.6), (1.0, 0.4), (1.0, NAN), (1.0, 0.5), (0.9, 0.1)]
    for update, (accuracy, loss) in enumerate(scores, 1):
        watch.observe(update, {"accuracy": accuracy, "loss": loss}, monitor)
    assert (watch.best_update, watch.best_metrics["loss"]) == (3, 0.4)
    assert watch.leaders(monitor, 2) == {3, 5}
    assert watch.without_improvement == 4  # a tie is no improvement of what is watched


@pytest.mark.parametrize(
    ("best", "known", "message"),
    [
        (
            "acuracy",
            ["accuracy"],
            r"^evaluate\.best: 'acuracy' is not among the evaluated metrics\. Did you mean 'accuracy'\?",
        ),
        ("accuracy", [], r"^evaluate\.best: 'accuracy' is not among the evaluated metrics\. Known: loss\."),
        (
            "mine",
            ["mine"],
            r"^evaluate\.best: .*'mine' is better is not known\. Write 'max:mine' or 'min:mine'\.",
        ),
        ("top:mine", ["mine"], r"^evaluate\.best: .*Write 'max:mine' or 'min:mine'\."),
        ("max:other", ["mine"], r"^evaluate\.best: 'other' is not among"),
    ],
)
def test_a_metric_that_cannot_be_monitored_is_refused(best: str, known: list[str], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        monitored(best, known)


def test_patience_counts_evaluations_since_the_best() -> None:
    watch, job = Watch(), Job.of(best="loss", patience=2)
    reasons = []
    for update, loss in enumerate([1.0, 2.0, 0.5, 0.6, NAN], 1):
        watch.observe(10 * update, {"loss": loss}, ("loss", False))
        reasons.append(watch.exhausted(job))
    assert reasons[:-1] == [None] * 4
    assert reasons[-1] == "early stopping: loss has not improved for 2 evaluations; best at update 30"
    assert watch.exhausted(Job.of(best="loss")) is None


def test_an_improvement_is_more_than_min_delta_better_than_the_one_before() -> None:
    watch, job = Watch(), Job.of(best="accuracy", patience=2, min_delta=0.1)
    reasons, best = [], []
    for update, accuracy in enumerate([0.5, 0.55, 0.65, 0.7, 0.75], 1):
        best.append(watch.observe(update, {"accuracy": accuracy}, ("accuracy", True), min_delta=0.1))
        reasons.append(watch.exhausted(job))
    assert best == [True] * 5, "the best is the best, by however little"
    assert reasons[:-1] == [None] * 4, "0.65 is more than 0.1 above 0.5, which stayed the reference"
    assert reasons[-1] == (
        "early stopping: accuracy has not improved by more than 0.1 for 2 evaluations; best at update 5"
    )


def test_when_the_weights_change_their_kind_best_and_patience_begin_anew() -> None:
    watch, monitor = Watch(), ("loss", False)
    for update, loss in enumerate([1.0, 0.1, 2.0], 1):
        watch.observe(update, {"loss": loss}, monitor, counts=False)
    assert (watch.best_update, watch.best_weights, watch.without_improvement) == (2, "raw", 0)
    assert watch.observe(4, {"loss": 0.5}, monitor, weights="swa")
    assert not watch.observe(5, {"loss": 0.6}, monitor, weights="swa")
    assert watch.observe(6, {"loss": 0.4}, monitor, weights="swa")
    assert (watch.best_update, watch.best_weights, watch.best_metrics) == (6, "swa", {"loss": 0.4})
    assert [entry["weights"] for entry in watch.history] == ["raw"] * 3 + ["swa"] * 3


def stop_below_one(history: list[dict[str, Any]]) -> str | None:
    last = history[-1]
    assert set(last) == {"update", "epoch", "metrics", "weights", "best"}
    last["metrics"].clear()  # a function that tidies up harms nothing
    return f"{len(history)} are enough" if last["epoch"] >= 1.0 else None


def test_a_trigger_of_ones_own_sees_all_evaluations_and_its_reason_is_told(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"validation": points(4, seed=1), "evaluate_every": 1, "epochs": 5.0}
    training = make_training(tmp_path, stop_when=stop_below_one, **settings)
    result = finish(training)
    reason = "early stopping: 3 are enough"
    assert (result.status, result.stop_reason, result.updates) == ("finished", reason, 3)
    assert all(entry["metrics"] for entry in training.watch.history)

    again = finish(resumed(make_training(tmp_path, stop_when=stop_below_one, **settings)))
    assert (again.stop_reason, again.updates) == (reason, 3)


def test_a_trigger_sees_the_evaluations_before_a_stop(tmp_path: Path) -> None:
    def four(history: list[dict[str, Any]]) -> str | None:
        return "four" if [entry["update"] for entry in history] == [1, 2, 3, 4] else None

    settings: dict[str, Any] = {"validation": points(4, seed=1), "evaluate_every": 1, "epochs": 5.0}
    stop_at(make_training(tmp_path, stop_when=four, **settings), 2)
    assert finish(resumed(make_training(tmp_path, stop_when=four, **settings))).updates == 4


@pytest.mark.parametrize("answer", [True, 1.0, "", ["too long"]])
def test_a_trigger_that_returns_no_reason_is_refused(answer: Any, tmp_path: Path) -> None:
    training = make_training(tmp_path, validation=points(4, seed=1), stop_when=lambda history: answer)
    with pytest.raises(
        SettingError, match=r"^early_stopping\.stop_when: returned .*Return the reason to stop"
    ):
        finish(training)


def test_a_trigger_that_fails_is_named_with_its_line(tmp_path: Path) -> None:
    training = make_training(tmp_path, validation=points(4, seed=1), stop_when=lambda history: history[7])
    with pytest.raises(
        SettingError, match=r"^early_stopping\.stop_when: failed: IndexError: .*test_best\.py:"
    ):
        finish(training)


def test_a_trigger_without_validation_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"^early_stopping\.stop_when: .*data\.validation"):
        make_training(tmp_path, stop_when=stop_below_one)


def worsening(outputs: Any, data: Any) -> Tensor:
    """A metric of one's own that falls from evaluation to evaluation."""
    worsening.calls += 1  # type: ignore[attr-defined]
    return torch.full((len(data[1]),), -float(worsening.calls))  # type: ignore[attr-defined]


def test_a_run_stops_early_with_its_reason_keeps_the_best_and_stays_finished_when_resumed(
    tmp_path: Path,
) -> None:
    worsening.calls = 0  # type: ignore[attr-defined]
    settings: dict[str, Any] = {
        "validation": points(4, seed=1),
        "metrics": {"mine": worsening},
        "best": "max:mine",
        "patience": 2,
        "evaluate_every": 1,
        "epochs": 5.0,
    }
    training = make_training(tmp_path, **settings)
    result = finish(training)
    reason = "early stopping: max:mine has not improved for 2 evaluations; best at update 1"
    assert (result.status, result.stop_reason, result.updates, result.resumable) == (
        "finished",
        reason,
        3,
        False,
    )
    metrics = {"loss": pytest.approx(1.2, abs=0.5), "mine": -1.0}
    assert result.best == {"update": 1, "metrics": metrics, "weights": "raw"}

    again = finish(resumed(make_training(tmp_path, **settings)))
    assert (again.status, again.stop_reason, again.updates, again.best) == (
        "finished",
        reason,
        3,
        result.best,
    )


def test_patience_survives_a_stop(tmp_path: Path) -> None:
    worsening.calls = 0  # type: ignore[attr-defined]
    settings: dict[str, Any] = {
        "validation": points(4, seed=1),
        "metrics": {"mine": worsening},
        "best": "max:mine",
        "patience": 3,
        "evaluate_every": 1,
        "epochs": 5.0,
    }
    stop_at(make_training(tmp_path, **settings), 2)
    assert finish(resumed(make_training(tmp_path, **settings))).updates == 4


def test_patience_without_validation_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"^early_stopping\.patience: .*data\.validation"):
        make_training(tmp_path, patience=1)


def test_the_averaged_weights_are_those_that_are_scored_and_saved(tmp_path: Path) -> None:
    model = small_model()
    training = make_training(
        tmp_path,
        model=model,
        validation=points(8, seed=1),
        techniques=(SGD(learning_rate=0.5), EMA(decay=0.9)),
        evaluate_every=1,
    )
    finish(training)
    told = events(training, "evaluation")
    best = min(told, key=lambda event: event["metrics"]["loss"])
    assert {event["weights"] for event in told} == {"ema"}
    assert [event["update"] for event in told if event["best"]][-1] == best["update"]

    raw = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    saved = load_file(tmp_path / "best/model.safetensors")
    assert not torch.equal(saved["0.weight"], raw["0.weight"])
    model.load_state_dict(saved)
    inputs = torch.stack([point for point, _ in points(8, seed=1)])
    labels = torch.stack([label for _, label in points(8, seed=1)])
    loss = torch.nn.functional.cross_entropy(model.eval()(inputs), labels).item()
    assert loss == pytest.approx(best["metrics"]["loss"], rel=1e-6)


def test_without_validation_the_last_weights_are_kept_and_nothing_is_called_best(tmp_path: Path) -> None:
    model = small_model()
    training = make_training(tmp_path, model=model, best="accuracy", metrics={"accuracy": "accuracy"})
    result = finish(training)
    assert (result.best, result.last) == (None, {"metrics": {}})
    assert events(training, "evaluation") == []
    saved = load_file(tmp_path / "best/model.safetensors")
    assert all(torch.equal(saved[name], weight) for name, weight in model.state_dict().items())
