"""Checkpoints that are written while the training goes on: of the right moment, one at a time, and never lost silently."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from snugfit.errors import RunFolderError, TrainingFailed
from snugfit.kit.serialize import pack
from snugfit.report.page import write_report
from snugfit.run.checkpoint import checkpoint_files, host_copy
from snugfit.run.checkpoint.host_copy import Snapshot
from snugfit.run.training.loop import Training
from snugfit.techniques.learning.adamw import AdamW
from snugfit.techniques.learning.ema import EMA
from tests.laws.problems import differences
from tests.unit.run.training.runs import (
    INPUTS,
    events,
    finish,
    make_training,
    points,
    resumed,
    small_model,
    stop_at,
    told,
)
from tests.unit.run.training.test_non_finite import poisoned_training

SECONDS = 20.0
Display = Callable[[dict[str, Any]], None]


def model() -> nn.Sequential:
    """With statistics that every forward changes."""
    return nn.Sequential(nn.BatchNorm1d(INPUTS), *small_model())


def training(folder: Path, save: str = "async", **settings: Any) -> Training:
    """Six windows, saved every second one."""
    return make_training(
        folder,
        model=settings.pop("model", None) or model(),
        techniques=(AdamW(learning_rate=0.1), EMA(decay=0.5)),
        checkpoint_save=save,
        **{"checkpoint_every": 2, "checkpoint_keep": 9, **settings},
    )


def names(run: Training) -> list[str]:
    return sorted(path.name for path in run.folder.checkpoints.iterdir())


def saved(run: Training) -> dict[str, bytes]:
    """All files of a run's checkpoints."""
    root = run.folder.checkpoints
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


class Writer:
    """The thread that writes; it writes no tensors until it is let."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._let, self._begun = threading.Event(), threading.Event()
        monkeypatch.setattr(checkpoint_files, "save_file", self._held(checkpoint_files.save_file))

    def wait(self) -> None:
        """Until it is at the first tensors."""
        assert self._begun.wait(SECONDS)

    def let(self) -> None:
        self._let.set()

    def let_soon(self) -> None:
        """When the training has had time to go on, if it does not wait."""
        threading.Timer(0.2, self.let).start()

    def _held(self, save_file: Callable[..., None]) -> Callable[..., None]:
        def held(*args: Any) -> None:
            self._begun.set()
            assert self._let.wait(SECONDS)
            save_file(*args)

        return held


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch) -> Writer:
    return Writer(monkeypatch)


def at(update: int, act: Callable[[], None]) -> Display:
    """Does something once an update is told."""

    def display(event: dict[str, Any]) -> None:
        if event["event"] == "update" and event["update"] == update:
            act()

    return display


def until_written() -> None:
    while any(thread.name == "checkpoint" for thread in threading.enumerate()):
        time.sleep(0.001)


def fail_in_the_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full for whoever writes beside the training."""
    fsync = os.fsync

    def full(descriptor: int) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)


def test_a_checkpoint_is_of_its_moment_though_the_training_went_on_before_it_was_written(
    tmp_path: Path, writer: Writer
) -> None:
    seen: list[list[str]] = []

    def let() -> None:
        writer.wait()
        seen.append(names(run))
        writer.let()

    run = training(tmp_path / "async", display=at(3, let))
    finish(run)
    waiting = training(tmp_path / "sync", save="sync")
    finish(waiting)
    assert seen == [[".saving-update-00000002"]]
    assert names(run) == ["update-00000002", "update-00000004", "update-00000006"]
    assert saved(run) == saved(waiting)
    assert told(run) == told(waiting)


def test_a_run_that_goes_on_from_such_a_checkpoint_is_the_uninterrupted_one(tmp_path: Path) -> None:
    whole = training(tmp_path / "whole", save="sync")
    finish(whole)
    stop_at(training(tmp_path / "stopped"), 3)
    again = resumed(
        training(tmp_path / "stopped", model=nn.Sequential(nn.BatchNorm1d(2), *small_model(seed=2)))
    )
    finish(again)
    assert not differences(whole.step.state_dict(), again.step.state_dict())
    assert told(again) == told(whole)


def test_the_next_save_waits_for_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    write = checkpoint_files.write

    def slow(final: Path, *args: Any) -> Path:
        log.append(f"begin {final.name[-1]}")
        time.sleep(0.1)
        write(final, *args)
        log.append(f"end {final.name[-1]}")
        return final

    monkeypatch.setattr(checkpoint_files, "write", slow)
    finish(training(tmp_path, checkpoint_every=1))
    assert log == [f"{what} {number}" for number in range(1, 7) for what in ("begin", "end")]


def test_the_event_says_how_long_the_training_waited_and_how_long_it_all_took(
    tmp_path: Path, writer: Writer
) -> None:
    run = training(tmp_path, display=at(3, lambda: time.sleep(0.2) or writer.let()))  # type: ignore[func-returns-value]
    finish(run)
    found = events(run, "checkpoint")
    assert [(each["update"], each["window"], each["path"]) for each in found] == [
        (number, number, f"checkpoints/update-0000000{number}") for number in (2, 4, 6)
    ]
    assert all(0 < each["blocked_seconds"] <= each["seconds"] + 0.1 for each in found)
    assert found[0]["seconds"] >= 0.2
    assert found[0]["blocked_seconds"] < found[0]["seconds"] - 0.1
    page = write_report(run.folder.path).read_text(encoding="utf-8")
    assert "training waited" in page


def test_a_save_that_waits_says_so(tmp_path: Path) -> None:
    run = training(tmp_path, save="sync")
    finish(run)
    for each in events(run, "checkpoint"):
        assert each["blocked_seconds"] == pytest.approx(each["seconds"], abs=0.05)


def test_a_full_disk_ends_nothing_and_the_run_stops_at_its_end_with_the_older_checkpoint_intact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_at(training(tmp_path), 2)
    run = resumed(training(tmp_path, display=at(5, until_written)))
    before = saved(run)
    fail_in_the_thread(monkeypatch)
    result = finish(run)
    assert (result.status, result.resumable, result.updates) == ("stopped", True, 6)
    assert result.stop_reason is not None
    assert "update-00000006: the checkpoint cannot be written: No space left on device" in result.stop_reason
    first, last = (event["message"] for event in events(run, "warning"))
    assert "update-00000004: the checkpoint cannot be written: No space left on device" in first
    assert "the newest one is update-00000002" in last
    assert saved(run) == before


def test_a_save_after_one_that_failed_is_whole_and_the_run_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:

        def make_room() -> None:
            until_written()
            patched.undo()

        fail_in_the_thread(patched)
        run = training(tmp_path, display=at(5, make_room))
        assert finish(run).status == "finished"
    assert names(run) == ["update-00000006"]
    assert [event["update"] for event in events(run, "checkpoint")] == [6]


@pytest.mark.parametrize("every", [1, 100])
def test_a_run_none_of_whose_checkpoints_could_be_written_has_failed_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    fail_in_the_thread(monkeypatch)
    run = training(tmp_path, checkpoint_every=every)
    with pytest.raises(
        TrainingFailed, match="update-00000006: .* There is no checkpoint to go on from"
    ) as failed:
        finish(run)
    assert failed.value.exit_code == 1
    assert run.step.progress.updates == 6
    assert names(run) == []


def test_what_cannot_be_saved_is_an_error_at_once(tmp_path: Path) -> None:
    run = training(tmp_path)
    run.description = {"of": {1, 2}}
    with pytest.raises(Exception, match="cannot be saved without a pickle"):
        finish(run)
    assert run.step.progress.updates == 2


def test_a_stop_waits_until_all_is_saved(tmp_path: Path, writer: Writer) -> None:
    run = training(tmp_path, display=at(3, writer.let_soon))
    stop_at(run, 3)
    assert names(run) == ["update-00000002", "update-00000003"]
    assert [event["update"] for event in events(run, "checkpoint")] == [2, 3]


def test_a_run_that_fails_leaves_what_was_being_saved_and_says_so(tmp_path: Path, writer: Writer) -> None:
    def fail() -> None:
        writer.let_soon()
        raise TrainingFailed("it is over")

    run = training(tmp_path, display=at(3, fail))
    with pytest.raises(TrainingFailed, match="it is over"):
        finish(run)
    assert names(run) == ["update-00000002"]
    assert [event["update"] for event in events(run, "checkpoint")] == [2]


def test_the_first_error_is_raised_and_a_save_that_failed_beside_it_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_in_the_thread(monkeypatch)

    def fail() -> None:
        raise TrainingFailed("it is over")

    run = training(tmp_path, display=at(3, fail))
    with pytest.raises(TrainingFailed, match="it is over"):
        finish(run)
    (warning,) = events(run, "warning")
    assert "update-00000002: the checkpoint cannot be written" in warning["message"]


def test_an_interrupt_does_not_wait(tmp_path: Path, writer: Writer) -> None:
    def interrupt() -> None:
        writer.wait()
        raise KeyboardInterrupt

    run = training(tmp_path, display=at(3, interrupt))
    with pytest.raises(KeyboardInterrupt):
        finish(run)
    assert names(run) == [".saving-update-00000002"]
    writer.let()
    until_written()
    assert names(run) == ["update-00000002"]


def test_a_roll_back_goes_to_what_was_being_saved(tmp_path: Path, writer: Writer) -> None:
    def run(folder: str, **settings: Any) -> Training:
        return poisoned_training(tmp_path / folder, 3, non_finite="roll_back", epochs=2.0, **settings)

    rolled = run("async", checkpoint_save="async", checkpoint_every=2, display=at(2, writer.let_soon))
    finish(rolled)
    waiting = run("sync", checkpoint_every=2)
    finish(waiting)
    assert told(rolled) == told(waiting)
    assert [event["window"] for event in events(rolled, "resume", raw=True)] == [2, 4]
    assert not differences(waiting.step.state_dict(), rolled.step.state_dict())


def test_a_copy_for_a_checkpoint_is_waited_for_on_each_device_before_it_is_given_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    memory = SimpleNamespace(copy_=lambda tensor, non_blocking: asked.append(f"copied from {tensor.device}"))
    monkeypatch.setattr(host_copy._Place, "of", lambda tensor: host_copy._Place(memory))
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda device: asked.append(f"waited for {device}"))
    tensors = [SimpleNamespace(device=torch.device(kind)) for kind in ("cuda:0", "cpu", "cuda:0")]
    packed: Any = SimpleNamespace(copied=lambda copy: [copy(str(n), each) for n, each in enumerate(tensors)])
    Snapshot().take(packed)
    assert asked == ["copied from cuda:0", "copied from cpu", "copied from cuda:0", "waited for cuda:0"]


def test_a_snapshot_keeps_its_values_and_uses_its_memory_again() -> None:
    weight, row = torch.arange(6.0).view(2, 3), torch.arange(3.0)
    parts = {"model": {"weight": weight, "tied": weight, "across": weight.t(), "row": row.expand(2, 3)}}
    snapshot = Snapshot()
    first = snapshot.take(pack(parts)).tensors["model"]
    place = first["model/weight"].data_ptr()
    weight += 1
    row += 1
    assert first["model/weight"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert first["model/across"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert first["model/row"].tolist() == [[0, 1, 2], [0, 1, 2]]
    assert "model/tied" not in first  # it is the same tensor
    second = snapshot.take(pack(parts)).tensors["model"]
    assert second["model/weight"].data_ptr() == place
    assert second["model/weight"].tolist() == weight.tolist()
    grown = snapshot.take(pack({"model": {"weight": torch.ones(3, 3)}})).tensors["model"]
    assert grown["model/weight"].tolist() == torch.ones(3, 3).tolist()


def test_a_checkpoint_of_points_of_a_run_on_other_data_is_still_refused(tmp_path: Path) -> None:
    stop_at(training(tmp_path), 2)
    with pytest.raises(RunFolderError, match="data: train row 0 was changed"):
        training(tmp_path, train=points(12, seed=3)).restore()
