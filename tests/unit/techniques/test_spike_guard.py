from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from snugfit.core.technique import RollBack
from snugfit.data.order import Order
from snugfit.display.event_lines import end_lines
from snugfit.errors import TrainingFailed
from snugfit.run.training.loop import Training
from snugfit.techniques.learning.ema import EMA
from snugfit.techniques.learning.sgd import SGD
from snugfit.techniques.learning.spike_guard import SpikeGuard, is_spike, spike_bound
from tests.laws import problems
from tests.laws.problems import differences, make_step, relative_error
from tests.oracles import spike_guard as oracle
from tests.unit.run.training.runs import (
    CLASSES,
    INPUTS,
    events,
    finish,
    make_training,
    points,
    resumed,
    stop_at,
)
from tests.unit.techniques.settings import context, refuses


@pytest.mark.parametrize(
    ("setting", "value"),
    [("history", 1), ("factor", 0), ("factor", math.nan), ("factor", math.inf), ("action", "stop")],
)
def test_impossible_settings_are_refused(setting: str, value: Any) -> None:
    refuses(SpikeGuard, **{setting: value})


def test_the_bound_is_that_many_spreads_above_the_median() -> None:
    losses = [1.0, 2.0, 3.0, 4.0, 100.0]
    assert spike_bound(losses, factor=2.0) == pytest.approx(3.0 + 2.0 * 1.4826 * 1.0)
    assert is_spike(5.97, losses, factor=2.0)
    assert not is_spike(5.96, losses, factor=2.0)


def test_spikes_in_the_history_do_not_hide_another() -> None:
    calm = [2.0, 2.1, 1.9, 2.05, 1.95]
    assert spike_bound([*calm, 1e9, 1e9], factor=10.0) < 6
    assert is_spike(1e9, [*calm, 1e9, 1e9], factor=10.0)


def test_losses_that_hardly_move_do_not_make_a_spike_of_the_next() -> None:
    assert not is_spike(2.0 + 1e-9, [2.0] * 8, factor=10.0)
    assert not is_spike(2.1, [2.0] * 8, factor=10.0)
    assert is_spike(2.3, [2.0] * 8, factor=10.0)
    assert not is_spike(-1.99, [-2.0] * 8, factor=10.0), "a loss below 0 has a spread too"


def test_a_falling_loss_is_never_a_spike_and_nothing_is_without_a_history() -> None:
    assert not is_spike(-1e9, [2.0, 1.0], factor=0.1)
    assert not is_spike(1e9, [], factor=0.1)


@pytest.mark.parametrize("action", ["skip", "roll_back"])
def test_it_watches_only_until_its_history_is_full_and_forgets_what_it_refused(action: Any) -> None:
    seams = SpikeGuard(history=3, factor=10.0, action=action).seams(context())
    assert seams.accept is not None and seams.state is not None
    for loss in (2.0, 900.0, 2.1):  # the beginning of a run may be anything
        assert seams.accept(loss) is None
    for _ in range(2):
        reason = seams.accept(500.0)
        assert reason is not None and reason.startswith("spike_guard: above 3.583, ")
        assert isinstance(reason, RollBack) == (action == "roll_back")
    assert seams.state.state_dict() == {"losses": [2.0, 900.0, 2.1]}
    assert seams.accept(1.9) is None
    assert seams.state.state_dict() == {"losses": [900.0, 2.1, 1.9]}


def test_a_spike_is_passed_over_as_in_the_slow_loop() -> None:
    technique = SpikeGuard(history=2, factor=0.01)
    problem = problems.reader(())
    windows = problem.windows(rows=(7, 6, 7, 5, 6, 7))
    step = make_step(problem, (technique,), micro_batch=3, momentum=0.0)
    results = [step(window) for window in windows]
    refusals = [result.refusal is not None for result in results]
    assert refusals == [not result.applied for result in results]
    assert 0 < sum(refusals) < 4
    expected = oracle.train(problem.model(), windows, asdict(technique), 6)
    assert [result.loss for result in results] == pytest.approx(expected.losses, rel=1e-10)
    assert relative_error(problems.weights(step), expected.weights) <= 1e-10


# runs: 5 windows an epoch; one example is a thousand times as far away, so that the loss is huge and finite

EXAMPLES = 20
ORDER = Order(EXAMPLES, global_batch=4, seed=0)
GUARDED: dict[str, Any] = {"history": 2, "factor": 20.0}


def linear() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Linear(INPUTS, CLASSES)


def far_away(*windows: int) -> list[tuple[Tensor, Tensor]]:
    """Points of which one in each of these windows of the first epoch is far on the wrong side."""
    data = points(EXAMPLES)
    for window in windows:
        index = ORDER.window(window - 1)[0][1]
        inputs, label = data[index]
        data[index] = (-1000 * inputs, label)
    return data


def guarded(folder: Path, *windows: int, action: str = "roll_back", **settings: Any) -> Training:
    guard = SpikeGuard(**GUARDED, action=action)  # type: ignore[arg-type]
    return make_training(
        folder,
        model=linear(),
        train=far_away(*windows),
        techniques=(SGD(learning_rate=0.1, momentum=0.9), EMA(decay=0.9), guard),
        **{"epochs": 1.0, "checkpoint_every": 2, "evaluate_every": 100, **settings},
    )


def test_the_run_goes_back_passes_over_the_window_and_ends_as_if_it_had_not_been(tmp_path: Path) -> None:
    training = guarded(tmp_path / "back", 4)
    result = finish(training)
    assert (result.status, result.updates, result.went_back) == ("finished", 4, [4])
    assert [event["update"] for event in events(training, "resume", raw=True)] == [2]

    # the same run, but for the window
    never = guarded(tmp_path / "never", 4)
    for number, window in enumerate(never.loader.windows(0, 5), start=1):
        if number == 4:
            never.step.progress.consume(window.rows, applied=False)  # draws are of the window's number
        else:
            assert never.step(window).applied
    assert not differences(never.step.state_dict(), training.step.state_dict())

    skipping = guarded(tmp_path / "skip", 4, action="skip")
    assert finish(skipping).went_back == []
    assert not differences(skipping.step.state_dict(), training.step.state_dict())


def test_without_the_guard_the_window_throws_the_weights_off(tmp_path: Path) -> None:
    training = guarded(tmp_path, 4)
    bare = make_training(
        tmp_path / "bare", model=linear(), train=far_away(4), techniques=(SGD(learning_rate=0.1),), epochs=1.0
    )
    finish(training), finish(bare)
    lengths = [float(run.step.parameters[0].detach().norm()) for run in (training, bare)]
    assert lengths[1] > 10 * lengths[0]


def test_the_event_and_the_end_say_it_and_the_batch_is_kept(tmp_path: Path) -> None:
    training = guarded(tmp_path, 4)
    result = finish(training)
    (skipped,) = events(training, "skipped")
    assert skipped["window"] == 4
    assert skipped["reason"].startswith("the run went back because of it: loss ")
    assert "spike_guard: above" in skipped["reason"]
    assert "culprits/window-00000004.safetensors" in skipped["reason"]
    assert any("went back because of window 4;" in line for line in end_lines({}, result.as_dict()))


@pytest.mark.parametrize("action", ["skip", "roll_back"])
@pytest.mark.parametrize("policy", ["stop", "roll_back"])
def test_what_is_not_finite_has_a_policy_of_its_own(
    tmp_path: Path, action: str, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing that is not finite is looked for in a finite window."""
    monkeypatch.setattr(
        "snugfit.run.training.non_finite.find_culprit", lambda *_: pytest.fail("it searched a finite window")
    )
    result = finish(guarded(tmp_path, 4, action=action, non_finite=policy))
    assert (result.status, result.went_back) == ("finished", [4] if action == "roll_back" else [])


@pytest.mark.parametrize("action", ["skip", "roll_back"])
def test_the_limit_of_windows_in_a_row_ends_the_run(tmp_path: Path, action: str) -> None:
    training = guarded(tmp_path, 4, 5, action=action, non_finite_limit=2)
    with pytest.raises(TrainingFailed, match=r"^window 5: .*spike_guard.*2 windows in a row .*limit: 2"):
        finish(training)


def test_a_window_passed_over_stays_so_after_a_stop(tmp_path: Path) -> None:
    whole = guarded(tmp_path / "whole", 4, epochs=2.0)
    finish(whole)
    stopped = guarded(tmp_path / "stopped", 4, epochs=2.0)
    stop_at(stopped, 5)
    again = resumed(guarded(tmp_path / "stopped", 4, epochs=2.0))
    assert list(again.watch.banned) == [4]
    finish(again)
    assert not differences(whole.step.state_dict(), again.step.state_dict())


def test_without_a_checkpoint_to_go_back_to_it_skips(tmp_path: Path) -> None:
    training = guarded(tmp_path, 4, checkpoint_every=100)
    result = finish(training)
    assert (result.updates, result.went_back) == (4, [])
    assert events(training, "resume", raw=True) == []
