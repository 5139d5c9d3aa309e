"""What becomes of a run when a window is not finite: stop, skip, roll back; and who is to blame."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn

from snugfit.core.batch import Batch
from snugfit.data.order import Order
from snugfit.errors import RunFolderError, TrainingFailed
from snugfit.run.training.culprit import MOST_WINDOWS, find_culprit, keep_window
from snugfit.run.training.loop import Training
from snugfit.step.step import Step
from snugfit.techniques.learning.ema import EMA
from snugfit.techniques.learning.sgd import SGD
from snugfit.techniques.numerics.fp16 import FP16
from tests.laws.problems import differences
from tests.unit.run.training.runs import (
    events,
    finish,
    make_training,
    points,
    resumed,
    seen,
    small_model,
    stop_at,
    told,
)

EXAMPLES = 12
ORDER = Order(EXAMPLES, global_batch=4, seed=0)
TECHNIQUES = (SGD(learning_rate=0.1, momentum=0.9), EMA(decay=0.9))


def example_of(*windows: int) -> list[int]:
    """An example of each of these windows of the first epoch, counted from 1."""
    return [ORDER.window(number - 1)[0][1] for number in windows]


def poisoned_training(folder: Path, *windows: int, **settings: Any) -> Training:
    """A run of one epoch, three windows, of which these are NaN."""
    return make_training(
        folder,
        train=points(EXAMPLES, poison=example_of(*windows)),
        techniques=TECHNIQUES,
        **{"epochs": 1.0, "checkpoint_every": 1, **settings},
    )


class Weights(dict[str, Any]):
    """Everything a step holds, copied."""

    @classmethod
    def of(cls, step: Step) -> Weights:
        state = step.state_dict()
        del state["progress"]
        return cls(
            torch.utils._pytree.tree_map(
                lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, state
            )
        )


def test_skip_goes_on_as_if_the_window_had_not_been(tmp_path: Path) -> None:
    training = poisoned_training(tmp_path, 2, non_finite="skip")
    result = finish(training)
    assert (result.status, result.updates, training.step.progress.windows) == ("finished", 2, 3)

    # the same updates by hand, without the window
    model = small_model()
    step = Step(model, None, "cross_entropy", TECHNIQUES, total_updates=3, nominal=4.0)
    for number, window in enumerate(poisoned_training(tmp_path / "other", 2).loader.windows(0, 3)):
        if number == 1:
            step.progress.consume(window.rows, applied=False)  # layers draw by the number of windows
        else:
            step(window)
    assert not differences(Weights.of(step), Weights.of(training.step))


def test_the_events_name_the_window_the_culprit_and_the_kept_batch(tmp_path: Path) -> None:
    training = poisoned_training(tmp_path, 2)
    finish(training)
    (skipped,) = events(training, "skipped")
    assert skipped["window"] == 2
    assert skipped["reason"] == (
        "loss nan: not finite, first in the batch itself, tensor 0, in row 4 (training); the batch is in "
        "culprits/window-00000002.safetensors"
    )
    updates = events(training, "update")
    assert [(e["window"], e["update"], e["applied"]) for e in updates] == [
        (1, 1, True),
        (2, 1, False),
        (3, 2, True),
    ]
    with safe_open(tmp_path / "culprits/window-00000002.safetensors", "pt") as file:
        ids = tuple(map(int, file.metadata()["example_ids"].split(",")))
        kept = file.get_tensor("tensor-0")
    assert ids == seen(training)[1]
    assert torch.isnan(kept).any(dim=1).tolist() == [index in example_of(2) for index in ids]


def test_stop_ends_the_run_with_a_checkpoint_from_which_it_goes_on_behind_the_window(tmp_path: Path) -> None:
    training = poisoned_training(tmp_path, 2, non_finite="stop", checkpoint_every=None)
    with pytest.raises(
        TrainingFailed, match=r"^window 2: loss nan: .* \(non_finite\.policy: stop, "
    ) as raised:
        finish(training)
    assert "culprits/window-00000002.safetensors" in str(raised.value)
    again = resumed(poisoned_training(tmp_path, 2, non_finite="stop", checkpoint_every=None))
    assert again.step.progress.windows == 2
    assert finish(again).updates == 2

    whole = poisoned_training(tmp_path / "skip", 2, non_finite="skip")
    finish(whole)
    assert not differences(whole.step.state_dict(), again.step.state_dict())


def test_a_last_window_that_stops_the_run_is_evaluated_and_not_lost(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"non_finite": "stop", "validation": points(4, seed=1)}
    with pytest.raises(TrainingFailed):
        finish(poisoned_training(tmp_path, 3, **settings))
    again = resumed(poisoned_training(tmp_path, 3, **settings))
    result = finish(again)
    assert result.status == "finished"
    assert result.best is not None
    assert result.best["update"] == 2
    assert (tmp_path / "best/model.safetensors").exists()


@pytest.mark.parametrize("policy", ["skip", "roll_back"])
def test_the_limit_of_windows_in_a_row_ends_the_run(tmp_path: Path, policy: str) -> None:
    training = poisoned_training(tmp_path, 2, 3, non_finite=policy, non_finite_limit=2)
    with pytest.raises(
        TrainingFailed, match=r"^window 3: .*2 windows in a row .*non_finite\.limit: 2"
    ) as raised:
        finish(training)
    assert policy in str(raised.value)
    assert training.folder.has_checkpoints


@pytest.mark.parametrize("policy", ["skip", "roll_back"])
def test_windows_that_do_not_follow_each_other_do_not_reach_the_limit(tmp_path: Path, policy: str) -> None:
    training = poisoned_training(tmp_path, 1, 3, non_finite=policy, non_finite_limit=2)
    assert finish(training).updates == 1


def test_updates_that_are_replayed_do_not_restart_the_count_towards_the_limit(tmp_path: Path) -> None:
    """Windows 3 and 4 fail, and after each the run goes back to window 1 and repeats window 2."""
    order = Order(20, global_batch=4, seed=0)
    data = points(20, poison=[order.window(number - 1)[0][1] for number in (3, 4)])
    settings: dict[str, Any] = {"train": data, "non_finite": "roll_back", "non_finite_limit": 2}
    stop_at(make_training(tmp_path, **settings), 1)
    with pytest.raises(TrainingFailed, match=r"^window 4: .*2 windows in a row"):
        finish(resumed(make_training(tmp_path, **settings)))


def test_the_count_towards_the_limit_survives_a_stop(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"non_finite": "skip", "non_finite_limit": 2}
    stop_at(poisoned_training(tmp_path, 2, 3, **settings), 2)
    with pytest.raises(TrainingFailed, match="^window 3: "):
        finish(resumed(poisoned_training(tmp_path, 2, 3, **settings)))


def test_roll_back_replays_from_the_checkpoint_and_passes_the_window_over(tmp_path: Path) -> None:
    training = poisoned_training(tmp_path, 3, non_finite="roll_back", checkpoint_every=1, epochs=2.0)
    # a checkpoint of window 1 only, so that window 2 has to be replayed
    stop_at(training, 1)
    training = resumed(
        poisoned_training(
            tmp_path, 3, non_finite="roll_back", checkpoint_every=100, evaluate_every=100, epochs=2.0
        )
    )
    assert finish(training).status == "finished"
    replayed = [tuple(index for _, index in ORDER.window(number)) for number in (1, 2, 1, 2)]
    assert seen(training)[:4] == replayed

    whole = poisoned_training(tmp_path / "skip", 3, non_finite="skip", epochs=2.0)
    finish(whole)
    assert not differences(whole.step.state_dict(), training.step.state_dict())
    # a reader sees each window once, and why one was passed over
    (poison,) = example_of(3)
    bad = [number for number in range(1, 7) if poison in {index for _, index in ORDER.window(number - 1)}]
    assert bad[0] == 3
    assert len(bad) == 2
    assert [event["window"] for event in events(training, "update")] == sorted({*range(1, 7)} - {*bad})
    skipped = events(training, "skipped")
    assert [event["window"] for event in skipped] == bad
    assert skipped[0]["reason"].startswith(
        "the run went back because of it: loss nan: not finite, first in the batch"
    )


def test_a_window_passed_over_stays_so_after_a_stop(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"non_finite": "roll_back", "checkpoint_every": 2, "evaluate_every": 100}
    whole = poisoned_training(tmp_path / "whole", 3, epochs=3.0, **settings)
    finish(whole)
    stopped = poisoned_training(tmp_path / "stopped", 3, epochs=3.0, **settings)
    stop_at(stopped, 3)
    assert list(stopped.watch.banned) == [3]
    again = resumed(poisoned_training(tmp_path / "stopped", 3, epochs=3.0, **settings))
    assert list(again.watch.banned) == [3]
    finish(again)
    assert told(again) == told(whole)
    assert not differences(whole.step.state_dict(), again.step.state_dict())


def test_roll_back_without_a_checkpoint_skips(tmp_path: Path) -> None:
    training = poisoned_training(tmp_path, 1, non_finite="roll_back")
    assert finish(training).updates == 2
    assert events(training, "resume", raw=True) == []


def test_a_run_without_any_update_is_not_finished(tmp_path: Path) -> None:
    training = poisoned_training(tmp_path, 1, 2, 3, non_finite="skip")
    with pytest.raises(TrainingFailed, match=r"^none of the 3 windows made an update"):
        finish(training)


def test_windows_whose_labels_are_all_ignored_are_skipped_and_do_not_count_as_failures(
    tmp_path: Path,
) -> None:
    ignored = {index for _, index in ORDER.window(1)}
    train = [(x, torch.tensor(-100) if i in ignored else y) for i, (x, y) in enumerate(points(EXAMPLES))]
    training = make_training(tmp_path, train=train, epochs=1.0, non_finite="stop")
    assert finish(training).updates == 2
    (skipped,) = events(training, "skipped")
    assert (skipped["window"], skipped["reason"]) == (2, "nothing in it counts: all labels are ignored")


HIGH = FP16(initial_scale=2.0**24, growth_interval=3)


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["stop", "skip", "roll_back"])
def test_a_loss_scale_that_is_still_too_high_is_no_failure(
    tmp_path: Path, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It neither counts towards the limit, nor is anybody to blame for it, nor does the run go back."""
    monkeypatch.setattr("snugfit.run.training.non_finite.find_culprit", lambda *_: pytest.fail("it searched"))
    training = make_training(
        tmp_path,
        techniques=(SGD(learning_rate=0.1), HIGH),
        epochs=6.0,
        checkpoint_every=1,
        non_finite=policy,
        non_finite_limit=2,
    )
    result = finish(training)
    skipped = events(training, "skipped")
    assert len(skipped) >= 4 and [event["window"] for event in skipped][:3] == [1, 2, 3]
    assert skipped[0]["reason"].endswith(
        "its gradient overflows at the loss scale 1.67772e+07, which was lowered"
    )
    assert (result.updates, result.went_back) == (18 - len(skipped), [])
    assert training.watch.refused_in_a_row == 0
    assert not (tmp_path / "culprits").exists()
    scales = [event["metrics"]["loss_scale"] for event in events(training, "update")]
    assert scales[:3] == [2.0**24, 2.0**23, 2.0**22]


def test_a_loss_that_is_not_finite_is_a_failure_under_a_loss_scale_too(tmp_path: Path) -> None:
    training = poisoned_training(tmp_path, 2, non_finite="stop")
    scaled = make_training(
        tmp_path / "scaled",
        train=points(EXAMPLES, poison=example_of(2)),
        techniques=(*TECHNIQUES, FP16(initial_scale=64.0)),
        epochs=1.0,
        non_finite="stop",
    )
    for each in (training, scaled):
        with pytest.raises(TrainingFailed, match=r"^window 2: loss nan: not finite, first in the batch"):
            finish(each)


def test_below_a_scale_of_one_the_scale_is_not_the_reason(tmp_path: Path) -> None:
    """4 and 2 are lowered; at 1 and below the gradient itself does not fit, and the limit counts."""
    model = small_model()
    model[0].weight.register_hook(lambda gradient: gradient * float("inf"))  # type: ignore[operator]
    training = make_training(
        tmp_path,
        model=model,
        techniques=(SGD(learning_rate=0.1), FP16(initial_scale=4.0)),
        epochs=3.0,
        non_finite_limit=2,
    )
    with pytest.raises(TrainingFailed, match=r"^window 4: .*gradient of 0\.weight.*2 windows in a row"):
        finish(training)
    reasons = [event["reason"] for event in events(training, "skipped")]
    assert ["which was lowered" in reason for reason in reasons] == [True, True, False, False]


class Bad(nn.Module):
    """Turns inputs into NaN in one of its parts, in forward or only in backward."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.first = nn.Linear(2, 4)
        self.norm = nn.BatchNorm1d(4)
        self.bad = _Log() if where == "forward" else _RootOfZero() if where == "backward" else nn.Identity()
        self.drop = nn.Dropout(0.5)
        self.last = nn.Linear(4, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.last(self.drop(self.bad(self.norm(self.first(inputs)))))
        return logits


class _Log(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.log()


class _RootOfZero(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + (inputs * 0).sqrt()  # 0 forward, 0 * inf backward


def bad_step(where: str) -> tuple[Step, Batch]:
    torch.manual_seed(0)
    model = Bad(where)
    if where == "weight":
        model.last.weight.data[0, 0] = float("inf")
    step = Step(model, SGD(learning_rate=0.1), micro_batch=3)
    window = Batch.of((torch.randn(6, 2), torch.zeros(6, dtype=torch.int64)), ids=range(6))
    assert not step(window).applied
    return step, window


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("forward", "output of bad (_Log), from finite inputs"),
        ("backward", "gradient of first.weight"),
        ("weight", "parameter last.weight"),
    ],
)
def test_the_culprit_is_the_first_place_that_is_not_finite(where: str, expected: str) -> None:
    assert find_culprit(*bad_step(where)) == expected


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_looking_for_the_culprit_changes_nothing(where: str) -> None:
    step, window = bad_step(where)
    before, progress, state = Weights.of(step), step.progress.state_dict(), torch.get_rng_state()
    find_culprit(step, window)
    assert not differences(before, Weights.of(step))
    assert step.progress.state_dict() == progress
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in step.parameters)
    assert not any(module._forward_hooks for module in step.model.modules())


def test_the_culprit_is_found_under_the_randomness_of_the_window_that_failed() -> None:
    """A layer that fails for some draws only is named, because the window is run again with the same draws."""

    class Fragile(nn.Module):
        def forward(self, inputs: Tensor) -> Tensor:
            return inputs / (torch.rand(()) > 0.5).float()

    torch.manual_seed(0)
    step = Step(nn.Sequential(nn.Linear(2, 3), Fragile()), SGD(learning_rate=0.1))
    window = Batch.of((torch.randn(4, 2), torch.zeros(4, dtype=torch.int64)))
    results = []
    for _ in range(8):
        if not step(window).applied:
            results.append(find_culprit(step, window))
    assert len(results) in range(1, 8)
    assert set(results) == {"output of 1 (Fragile), from finite inputs"}


def test_a_batch_that_holds_one_tensor_twice_is_kept(tmp_path: Path) -> None:
    ids = torch.arange(6).reshape(2, 3)
    window = Batch.of({"input_ids": ids, "labels": ids, "row": ids[:, 0]}, ids=(7, 9))
    assert keep_window(tmp_path, 3, window) == f"{tmp_path.name}/window-00000003.safetensors"
    with safe_open(tmp_path / "window-00000003.safetensors", "pt") as file:
        assert file.metadata() == {"example_ids": "7,9"}
        assert [file.get_tensor(name).tolist() for name in sorted(file.keys())] == [
            [[0, 1, 2], [3, 4, 5]],
            [[0, 1, 2], [3, 4, 5]],
            [0, 3],
        ]


def test_only_the_first_few_batches_are_kept(tmp_path: Path) -> None:
    window = Batch.of((torch.zeros(1, 1), torch.zeros(1)), ids=(0,))
    kept = [keep_window(tmp_path, number, window) for number in range(1, MOST_WINDOWS + 3)]
    assert [name is None for name in kept] == [False] * MOST_WINDOWS + [True] * 2
    assert keep_window(tmp_path, 1, window) is not None  # met again after a resume
    assert len(list(tmp_path.iterdir())) == MOST_WINDOWS


def test_a_batch_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "culprits").write_text("in the way")
    with pytest.raises(RunFolderError, match="the batch cannot be written"):
        keep_window(tmp_path / "culprits", 1, Batch.of((torch.zeros(1, 1), torch.zeros(1))))
