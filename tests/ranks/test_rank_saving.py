"""Checkpoints that ranks write while they train on: of one moment, and failed for all where they failed for one."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from snugfit.core.job import Plan
from snugfit.run.checkpoint import checkpoint_files
from snugfit.run.training.loop import Training
from snugfit.techniques.learning.adamw import AdamW
from snugfit.techniques.learning.ema import EMA
from tests.ranks.law import STRATEGIES
from tests.ranks.pool import Ranks
from tests.unit.run.training.runs import Never, make_training, points, small_model

SECONDS = 20.0


def training(folder: Path, save: str, strategy: str) -> Training:
    """Six windows, saved every second one."""
    return make_training(
        folder,
        validation=points(5, seed=1),
        techniques=(AdamW(learning_rate=0.1), EMA(decay=0.5)),
        plan=Plan(micro_batch=1),
        strategy=STRATEGIES[strategy](),
        checkpoint_save=save,
        checkpoint_every=2,
        checkpoint_keep=9,
    )


class After(Never):
    """Never asks to stop; sets an event once that many windows are done."""

    def __init__(self, run: Training, windows: int) -> None:
        self.run, self.windows, self.enough = run, windows, threading.Event()

    @property
    def reason(self) -> None:  # type: ignore[override]
        if self.run.step.progress.windows >= self.windows:
            self.enough.set()


def part(folder: Path, save: str, strategy: str) -> None:
    """A run whose first checkpoint is begun to be written once the third window is done, if it does not wait for it."""
    run = training(folder, save, strategy)
    stop, write = After(run, 3), checkpoint_files.write

    def late(*args: Any) -> Path:
        assert save == "sync" or stop.enough.wait(SECONDS)
        return write(*args)

    checkpoint_files.write = late  # type: ignore[assignment]
    try:
        run.run(stop)  # type: ignore[arg-type]
    finally:
        checkpoint_files.write = write


def saved(folder: Path) -> dict[str, Any]:
    """All files of a run's checkpoints, those of tensors by their values: in what order safetensors writes what it says of them is chance."""
    root, found = folder / "checkpoints", {}
    for path in root.rglob("*.json"):
        found[str(path.relative_to(root))] = (
            set(read(path)["sha256"]) if path.stem == "manifest" else read(path)
        )
    for path in root.rglob("*.safetensors"):
        tensors = load_file(path).items()
        found[str(path.relative_to(root))] = {name: (value.dtype, value.tolist()) for name, value in tensors}
    return found


def read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["fsdp", "ddp", "fsdp-offload"])
def test_what_ranks_save_is_of_its_moment_though_they_went_on_before_it_was_written(
    two: Ranks, tmp_path: Path, strategy: str
) -> None:
    for save in ("sync", "async"):
        two.run(part, tmp_path / save, save, strategy)
    found = saved(tmp_path / "async")
    assert {name.partition("/")[0] for name in found} == {f"update-0000000{number}" for number in (2, 4, 6)}
    assert found == saved(tmp_path / "sync")


def failing(folder: Path, strategy: str, rank: int, goes_on: int) -> tuple[str, str, int]:
    """How a run ends whose disk is full from the second checkpoint on, on one rank, why, and in which window."""
    run = training(folder, "async", strategy)
    fsync, write, second = os.fsync, checkpoint_files.write, threading.Event()

    def full(descriptor: int) -> None:
        if second.is_set():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    def watched(final: Path, *args: Any) -> Path:
        if final.name == "update-00000004":
            second.set()
        return write(final, *args)

    class Waits(Never):
        """At the end of a window, for the thread; of all ranks, so that it does not depend on who is faster."""

        @property
        def reason(self) -> None:  # type: ignore[override]
            writes = strategy == "fsdp" or run.step.strategy.rank == 0
            if run.step.progress.windows == goes_on and writes:
                assert second.wait(SECONDS)
                while any(thread.name == "checkpoint" for thread in threading.enumerate()):
                    time.sleep(0.001)

    checkpoint_files.write = watched  # type: ignore[assignment]
    if run.step.strategy.rank == rank:
        os.fsync = full  # type: ignore[assignment]
    try:
        result = run.run(Waits())  # type: ignore[arg-type]
    finally:
        os.fsync, checkpoint_files.write = fsync, write
    return result.status, str(result.stop_reason), run.step.progress.windows


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "rank"), [("fsdp", 1), ("fsdp", 0), ("ddp", 0)])
@pytest.mark.parametrize("goes_on", [5, 7])
def test_all_ranks_train_on_when_one_cannot_write_and_stop_at_the_end_with_its_failure(
    two: Ranks, tmp_path: Path, strategy: str, rank: int, goes_on: int
) -> None:
    found = two.run(failing, tmp_path, strategy, rank, goes_on)
    assert [(status, windows) for status, _, windows in found] == [("stopped", 6), ("stopped", 6)]
    assert found[0][1] == found[1][1]
    assert "update-00000006: the checkpoint cannot be written" in found[0][1]
    assert "No space left on device" in found[0][1]
    assert {name.partition("/")[0] for name in saved(tmp_path)} == {"update-00000002"}


def resumed(folder: Path, strategy: str) -> None:
    run = training(folder, "async", strategy)
    run.restore()
    assert run.step.progress.windows == 2
    run.run(Never())  # type: ignore[arg-type]


def test_after_a_failure_the_run_goes_on_from_the_older_checkpoint_and_ends_as_if_it_had_not_been(
    two: Ranks, tmp_path: Path
) -> None:
    two.run(failing, tmp_path / "failed", "fsdp", 1, 5)
    two.run(resumed, tmp_path / "failed", "fsdp")
    two.run(part, tmp_path / "whole", "sync", "fsdp")
    assert saved(tmp_path / "failed") == saved(tmp_path / "whole")


def several_models(folder: Path, strategy: str) -> list[str]:
    """The names of the models that a run keeps, of the two best evaluations and a third that only the first rank is asked for."""
    rank = STRATEGIES[strategy]().rank
    run = make_training(
        folder,
        model=small_model(dropout=0.0),  # ranks draw otherwise
        validation=points(5, seed=1),
        techniques=(AdamW(learning_rate=0.3),),
        plan=Plan(micro_batch=1),
        strategy=STRATEGIES[strategy](),
        evaluate_every=1,
        keep_models=2,
        keep_when=lambda evaluations: rank == 0 and len(evaluations) == 1,
    )
    run.run(Never())  # type: ignore[arg-type]
    return sorted(path.name for path in (folder / "models").iterdir())


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_ranks_keep_the_models_that_one_keeps(two: Ranks, tmp_path: Path, strategy: str) -> None:
    first, second = two.run(several_models, tmp_path / "two", strategy)
    assert first == second == several_models(tmp_path / "one", "alone")
    assert len(first) in (2, 3) and "update-00000001" in first
    for name in first:
        theirs, own = (
            load_file(tmp_path / folder / "models" / name / "model.safetensors") for folder in ("two", "one")
        )
        for key, value in own.items():
            assert value.allclose(theirs[key], rtol=1e-4, atol=1e-5)
