"""The newest run that can go on."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from torch import nn

import snugfit as sf
from snugfit.errors import RunFolderError
from snugfit.results.run_folder import RunFolder
from snugfit.run.newest import holds_runs, newest_resumable
from tests.unit.run.training.runs import points, small_model


def run_folder(
    output: Path, id: str, *events: dict[str, object], name: str = "news", checkpoint: bool = True
) -> Path:
    folder = output / name / id
    folder.mkdir(parents=True)
    (folder / "events.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))
    if checkpoint:
        (folder / "checkpoints" / "update-00000001").mkdir(parents=True)
    return folder


UPDATE = {"event": "update"}
STOPPED = {"event": "end", "status": "stopped", "resumable": True}
FINISHED = {"event": "end", "status": "finished", "resumable": False}
NOTE = {"event": "warning", "message": "said later"}


def test_it_is_the_newest_that_was_stopped_or_killed_with_a_checkpoint(tmp_path: Path) -> None:
    oldest = run_folder(tmp_path, "20260101-000000-aaaa", UPDATE, STOPPED)
    killed = run_folder(tmp_path, "20260102-000000-aaaa", UPDATE, name="films")
    run_folder(tmp_path, "20260103-000000-aaaa", UPDATE, FINISHED, NOTE)
    run_folder(tmp_path, "20260104-000000-aaaa", UPDATE, checkpoint=False)
    assert newest_resumable(tmp_path).path == killed
    assert newest_resumable(tmp_path, "news").path == oldest
    assert newest_resumable(tmp_path, suits=lambda folder: folder.path != killed).path == oldest


def test_a_torn_last_line_is_no_end(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, "20260101-000000-aaaa", UPDATE)
    with (folder / "events.jsonl").open("a") as file:
        file.write('{"event": "end", "stat')
    assert newest_resumable(tmp_path).path == folder


@pytest.mark.skipif(os.name == "nt", reason="no lock of files there")
def test_a_run_that_another_process_trains_is_passed_over(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, "20260101-000000-aaaa", UPDATE)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        with RunFolder(folder).claimed():
            os.write(writer, b"1")
            signal.pause()  # until it is killed
    os.read(reader, 1)
    try:
        with pytest.raises(
            RunFolderError,
            match=r"resume: no run in .* was stopped and has a checkpoint\. Name a run's folder",
        ):
            newest_resumable(tmp_path)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert newest_resumable(tmp_path).path == folder


def test_python_code_goes_on_with_the_last_run(tmp_path: Path) -> None:
    def train(model: nn.Module, **settings: object) -> sf.RunResult:
        return sf.train(
            model,
            points(40),
            updates=6,
            global_batch=8,
            device="cpu",
            track=False,
            output=tmp_path,
            **settings,
        )

    whole, parts = small_model(), small_model()
    train(whole)
    stopped = train(parts, stop_after_seconds=1e-6)
    assert stopped.status == "stopped"
    resumed = train(parts, resume="last")
    assert (resumed.run_dir, resumed.status) == (stopped.run_dir, "finished")
    assert all(
        (one == other).all() for one, other in zip(whole.parameters(), parts.parameters(), strict=True)
    )
    with pytest.raises(RunFolderError, match="no run in .* was stopped"):
        train(parts, resume="last")


def test_a_folder_of_runs_is_no_run(tmp_path: Path) -> None:
    run = run_folder(tmp_path, "20260101-000000-aaaa", UPDATE)
    assert (holds_runs(tmp_path), holds_runs(run), holds_runs(tmp_path / "nothing")) == (True, False, False)
