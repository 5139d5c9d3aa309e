"""A disk that is full, or a run's folder that vanishes, while a run trains: it is said, and as little as can be is lost."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors import SafetensorError

from snugfit.errors import RunFolderError, TrainingFailed
from snugfit.kit.serialize import pack
from snugfit.models.bundle import read_meta, save_bundle
from snugfit.run.checkpoint import checkpoint_files
from snugfit.run.training.loop import Training
from tests.laws.problems import differences
from tests.unit.run.training.runs import events, finish, make_training, points, resumed, small_model

FULL = "No space left on device (os error 28)"
VALIDATION = points(5, seed=1)
Raises = Callable[[], Exception]


def full() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Disk:
    """Counts what `save_file` writes, and fails for those that are asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, fails: Callable[[int], bool]) -> None:
        self.writes = 0
        module, _, attribute = name.rpartition(".")
        before = getattr(__import__(module, fromlist=[attribute]), attribute)

        def write(*args: Any, **settings: Any) -> None:
            self.writes += 1
            if fails(self.writes):
                raise SafetensorError(f"Error while serializing: I/O error: {FULL}")
            before(*args, **settings)

        monkeypatch.setattr(name, write)


def messages(run: Training) -> list[str]:
    return [event["message"] for event in events(run, "warning")]


@pytest.mark.parametrize("problem", [full, lambda: SafetensorError(FULL), lambda: Exception(FULL)])
def test_a_bundle_that_cannot_be_written_is_one_error_whatever_the_library_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: Raises
) -> None:
    save_bundle(tmp_path / "best", small_model(), {"of": "before"})

    def fail(*arguments: Any) -> None:
        raise problem()

    monkeypatch.setattr("snugfit.models.bundle._save_plain", fail)
    with pytest.raises(RunFolderError, match="the best model cannot be written to .*No space left on device"):
        save_bundle(tmp_path / "best", small_model(), {"of": "now"})
    assert read_meta(tmp_path / "best")["of"] == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["best"]


def test_a_mistake_while_a_bundle_is_written_is_not_taken_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> None:
        raise ValueError("a mistake")

    monkeypatch.setattr("snugfit.models.bundle._save_plain", fail)
    with pytest.raises(ValueError, match="a mistake"):
        save_bundle(tmp_path / "best", small_model(), {})


def test_the_best_is_what_best_holds_where_the_disk_did_not_take_a_better_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_training(tmp_path, validation=VALIDATION, evaluate_every=1, checkpoint_every=1)
    scores = iter([3.0, 1.0, 2.0, 2.5, 2.6, 2.7])
    monkeypatch.setattr("snugfit.run.training.loop.evaluate", lambda *given: {"loss": next(scores)})
    save = run.save_best
    calls: list[int] = []

    def fails_once(*given: Any, **named: Any) -> None:
        calls.append(run.step.progress.updates)
        if run.step.progress.updates == 2:
            raise RunFolderError.from_text("the best model cannot be written: Permission denied.")
        save(*given, **named)

    run.save_best = fails_once  # type: ignore[assignment]
    result = finish(run)
    assert calls == [
        1,
        2,
        3,
    ]  # at the third, which is better than what is there, though worse than the second
    assert result.status == "finished"
    assert result.best is not None and (result.best["update"], result.best["metrics"]) == (3, {"loss": 2.0})
    assert read_meta(tmp_path / "best")["update"] == 3
    assert [event["update"] for event in events(run, "evaluation") if event["best"]] == [1, 3]
    assert [entry["update"] for entry in run.watch.history if entry["best"]] == [1, 3]
    assert "The training goes on" in messages(run)[0]


def test_room_for_the_best_model_is_made_of_older_checkpoints_and_the_last_whole_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_training(tmp_path, validation=VALIDATION, evaluate_every=6, checkpoint_every=2)
    save, calls = run.save_best, []

    def first_fails(*given: Any, **named: Any) -> None:
        calls.append(sorted(folder.name for folder in run.folder.checkpoints.iterdir()))
        if len(calls) == 1:
            raise RunFolderError.from_text(f"the best model cannot be written: {os.strerror(errno.ENOSPC)}.")
        save(*given, **named)

    run.save_best = first_fails  # type: ignore[assignment]
    assert finish(run).status == "finished"
    assert calls == [["update-00000002", "update-00000004"], ["update-00000004"]]


def test_a_run_whose_last_best_model_was_not_written_is_stopped_and_delivers_it_when_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: Any, **named: Any) -> None:
        raise RunFolderError.from_text("the best model cannot be written: Permission denied.")

    run = make_training(tmp_path, validation=VALIDATION)
    run.save_best = refuse  # type: ignore[assignment]
    result = finish(run)
    assert (result.status, result.resumable, result.best) == ("stopped", True, None)
    assert "Permission denied" in str(result.stop_reason)
    again = resumed(make_training(tmp_path, validation=VALIDATION))
    result = finish(again)
    whole = finish(make_training(tmp_path / "whole", validation=VALIDATION))
    assert result.status == "finished"
    assert result.best is not None and result.best["update"] == 6
    assert read_meta(tmp_path / "best")["metrics"]["loss"] == result.best["metrics"]["loss"]
    assert whole.last == result.last


def test_without_validation_too_the_last_weights_are_delivered_when_it_goes_on(tmp_path: Path) -> None:
    def refuse(*given: Any, **named: Any) -> None:
        raise RunFolderError.from_text("the best model cannot be written: Permission denied.")

    run = make_training(tmp_path)
    run.save_best = refuse  # type: ignore[assignment]
    assert finish(run).status == "stopped"
    assert finish(resumed(make_training(tmp_path))).status == "finished"
    assert read_meta(tmp_path / "best")["update"] == 6


def test_room_for_a_checkpoint_is_made_of_the_one_that_would_be_removed_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2):
        checkpoint_files.write(tmp_path / f"update-{number:08d}", pack({"run": {"n": number}}), keep=2)
    write, seen = checkpoint_files._write_json, []

    def needs_room(path: Path, value: Any) -> None:
        seen.append(sorted(folder.name for folder in tmp_path.glob("update-*")))
        if len(seen[-1]) > 1:
            raise full()
        write(path, value)

    monkeypatch.setattr(checkpoint_files, "_write_json", needs_room)
    checkpoint_files.write(tmp_path / "update-00000003", pack({"run": {"n": 3}}), keep=2)
    assert seen[:2] == [["update-00000001", "update-00000002"], ["update-00000002"]]
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["update-00000002", "update-00000003"]


def test_the_last_whole_checkpoint_is_never_removed_to_make_room_and_a_damaged_one_is_first(
    tmp_path: Path,
) -> None:
    for number in (1, 2, 3):
        checkpoint_files.write(tmp_path / f"update-{number:08d}", pack({"run": {"n": number}}), keep=9)
    (tmp_path / "update-00000003/run.json").write_text("{")
    assert checkpoint_files.make_room(tmp_path, keep=2)
    assert [path.name for path in tmp_path.iterdir()] == ["update-00000002"]
    assert not checkpoint_files.make_room(tmp_path, keep=2)
    assert checkpoint_files.any_whole(tmp_path)
    (tmp_path / "update-00000002/run.json").write_text("{")
    assert not checkpoint_files.any_whole(tmp_path)
    assert not checkpoint_files.make_room(tmp_path, keep=2)


def test_no_checkpoint_is_removed_for_a_disk_that_refuses_for_another_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2):
        checkpoint_files.write(tmp_path / f"update-{number:08d}", pack({"run": {"n": number}}), keep=2)

    def refuse(path: Path, value: Any) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(checkpoint_files, "_write_json", refuse)
    with pytest.raises(RunFolderError, match="Permission denied"):
        checkpoint_files.write(tmp_path / "update-00000003", pack({"run": {"n": 3}}), keep=2)
    assert len(list(tmp_path.iterdir())) == 2


def test_a_disk_that_is_full_for_some_saves_changes_no_weight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings: dict[str, Any] = {"validation": VALIDATION, "checkpoint_every": 1}
    finish(make_training(tmp_path / "whole", **settings))
    Disk(monkeypatch, "snugfit.run.checkpoint.checkpoint_files.save_file", lambda number: number in (1, 3))
    run = make_training(tmp_path / "full", **settings)
    assert finish(run).status == "finished"
    one, other = (checkpoint_files.load_newest(tmp_path / name / "checkpoints") for name in ("full", "whole"))
    assert one.folder.name == other.folder.name
    assert not differences(one.parts["model"], other.parts["model"])
    assert len(messages(run)) == 2


def test_a_run_whose_folder_vanishes_says_so_and_does_not_make_it_anew(tmp_path: Path) -> None:
    folder = tmp_path / "run"

    def vanish(event: dict[str, Any]) -> None:
        if event["event"] == "update" and event["update"] == 4:
            shutil.rmtree(folder)
        if event["event"] == "warning":
            said.append(event["message"])

    said: list[str] = []
    run = make_training(folder, validation=VALIDATION, display=vanish)
    with pytest.raises(TrainingFailed, match="the run's folder is gone: somebody removed or renamed it"):
        finish(run)
    assert run.step.progress.updates == 6
    assert said
    assert all("the run's folder is gone" in message for message in said)
    assert not folder.exists()


def test_a_run_whose_events_cannot_be_written_trains_on_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[dict[str, Any]] = []
    run = make_training(tmp_path, validation=VALIDATION, display=shown.append)
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, line: write(os.open("/dev/full", os.O_WRONLY), line))
    assert finish(run).status == "finished"
    monkeypatch.undo()
    run.emit("note", text="the disk has room again")
    warnings = [event["message"] for event in shown if event["event"] == "warning"]
    assert len(warnings) == 1
    assert "events cannot be written: No space left on device. The run goes on" in warnings[0]
    assert [event["event"] for event in events(run, "update", "note")] == ["update"] * 6 + ["note"]


def test_a_window_that_cannot_be_kept_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*given: Any) -> None:
        raise RunFolderError.from_text("window: the batch cannot be written: No space left on device.")

    monkeypatch.setattr("snugfit.run.training.non_finite.keep_window", refuse)
    run = make_training(tmp_path, train=points(12, poison=[3]))
    assert finish(run).status == "finished"
    assert "the batch cannot be written" in events(run, "skipped")[0]["reason"]
