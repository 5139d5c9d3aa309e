"""What the tests of faults run in processes of their own, to be stopped or killed there."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import snugfit as sf
from snugfit.run.training.stop_requests import StopRequest

EXAMPLES = 40
UPDATES = 18


class Noisy:
    """Points that are blurred anew whenever they are read; `seconds` makes reading one slow."""

    def __init__(self, seconds: float = 0.0) -> None:
        source = torch.Generator().manual_seed(0)
        self.inputs = torch.randn(EXAMPLES, 2, generator=source)
        self.seconds = seconds

    def __len__(self) -> int:
        return EXAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        time.sleep(self.seconds)
        blur = 0.1 * torch.randn(2) + 0.1 * float(np.random.randn()) + 0.1 * random.random()
        return self.inputs[index] + blur, (self.inputs[index].sum() > 0).long()


class Slow(nn.Module):
    """A model with dropout whose forward takes a while, and leaves a mark when it has begun."""

    def __init__(self, seconds: float = 0.0, mark: str | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 2))
        self._seconds, self._mark = seconds, mark  # how long it takes is no part of what a resume compares

    def forward(self, inputs: Tensor) -> Tensor:
        if self._mark is not None:
            Path(self._mark).touch()
        time.sleep(self._seconds)
        logits: Tensor = self.body(inputs)
        return logits


def train(
    output: str,
    resume: str | None = None,
    kill_at: int | None = None,
    seconds: float = 0.0,
    load_seconds: float = 0.0,
    workers: int = 0,
    updates: int = UPDATES,
    mark: str | None = None,
    stop_after: float | None = None,
    received: str | None = None,
    save: str = "sync",
    hang_at: int | None = None,
) -> None:
    """A run with everything that a resume could lose; its result goes to `output/result.json`.

    `kill_at`: the process kills itself once it has told of that update; `received` is a file that is made once a signal
    has been received; `hang_at`: of which update a checkpoint is begun and never written to its end.
    """
    if hang_at is not None:
        hang_in_checkpoint(hang_at)
    receive = StopRequest._receive

    def marking(stop: StopRequest, number: int, frame: Any) -> None:
        receive(stop, number, frame)
        if received is not None:
            Path(received).touch()

    StopRequest._receive = marking  # type: ignore[method-assign]

    def display(event: dict[str, Any]) -> None:
        if event["event"] == "update" and event["update"] == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    result = sf.train(
        Slow(seconds, mark),
        Noisy(load_seconds),
        optimizer=sf.AdamW(learning_rate=0.02),
        techniques=[
            sf.Linear(warmup=2),
            sf.ClipNorm(max_norm=1.0),
            sf.EMA(decay=0.8),
            sf.SAM(rho=0.05),
            sf.HardExamples(fraction=0.6),
        ],
        validation=0.2,
        global_batch=7,
        micro_batch=4,
        updates=updates,
        evaluate_every=4,
        checkpoint_every=2,
        checkpoint_save=save,
        device="cpu",
        num_workers=workers,
        output=output,
        resume=resume,
        stop_after_seconds=stop_after,
        track=False,
        display=display,
    )
    Path(output, "result.json").write_text(json.dumps(result.as_dict()))


def hang_in_checkpoint(update: int) -> None:
    """Stop in the middle of a checkpoint: half of its files are there."""
    from snugfit.run.checkpoint import checkpoint_files

    save_file = checkpoint_files.save_file

    def hang(tensors: dict[str, Tensor], path: Path) -> None:
        save_file(tensors, path)
        if path.parent.name.endswith(f"update-{update:08d}"):
            time.sleep(3600)

    checkpoint_files.save_file = hang


def parts(number: int) -> dict[str, Any]:
    """A state of which every part says what its number is."""

    def weight() -> Tensor:
        return torch.full((300,), float(number))

    return {
        "model": {"parameters": {"weight": weight()}},
        "run": {"updates": number, "nothing": None},
        "techniques/ema": {"averages": {"weight": weight()}},
    }


class WritePoints:
    """Counts what a save does to the disk, and kills the process before, after or in the middle of one of it."""

    def __init__(self, at: int | None = None, when: str = "") -> None:
        self.calls: list[str] = []
        self._at, self._when = at, when

    def install(self) -> None:
        import shutil

        from snugfit.run.checkpoint import checkpoint_files

        for owner, name in (
            (os, "fsync"),
            (os, "replace"),
            (Path, "mkdir"),
            (Path, "write_text"),
            (shutil, "rmtree"),
            (checkpoint_files, "save_file"),
        ):
            setattr(owner, name, self._watched(name, getattr(owner, name)))

    def _watched(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            number = len(self.calls)
            self.calls.append(name)
            here = number == self._at
            if here and self._when == "before":
                self.kill()
            if here and self._when == "torn" and name == "rmtree":  # half of it is gone
                files = sorted(path for path in Path(args[0]).rglob("*") if path.is_file())
                for path in files[: (len(files) + 1) // 2]:
                    path.unlink()
                self.kill()
            result = function(*args, **kwargs)
            if here and self._when == "torn":  # half of it was written
                written = args[1] if name == "save_file" else args[0]
                os.truncate(written, os.path.getsize(written) // 2)
            if here:
                self.kill()
            return result

        return call

    @staticmethod
    def kill() -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def kill_at_every_write_point(folder: str, damaged: bool, answer: str) -> None:
    """Save over and over, each time killed at another point, and write down what is found afterwards.

    Before the save stand the checkpoints 1 and 2, and a left-over; `damaged` is about one of the same name as what
    is saved. Each line of the answer is one point: what was going on, and what was loaded, then saved, after the kill.
    """
    import shutil

    from snugfit.kit.serialize import pack
    from snugfit.run.checkpoint import checkpoint_files

    root = Path(folder)

    def prepare(place: Path) -> Path:
        place.mkdir(parents=True)  # a run's folder that is not there is not made anew by a save
        for number in (1, 2):
            checkpoint_files.write(place / f"update-{number:08d}", pack(parts(number)), keep=2)
        shutil.copytree(place / "update-00000001", place / ".saving-update-00000009")
        if damaged:
            shutil.copytree(place / "update-00000002", place / "update-00000003")
            os.truncate(place / "update-00000003/run.json", 5)
        return place

    def save(place: Path, number: int) -> None:
        checkpoint_files.write(place / f"update-{number:08d}", pack(parts(number)), keep=2)

    template = prepare(root / "template")
    trial = WritePoints()
    pid = os.fork()
    if pid == 0:
        trial.install()
        save(shutil.copytree(template, root / "trial"), 3)
        (root / "calls.json").write_text(json.dumps(trial.calls))
        os._exit(0)
    os.waitpid(pid, 0)
    every = json.loads((root / "calls.json").read_text())

    outcomes = []
    for number, name in enumerate(every):
        moments = ["before", "after"]
        if name in ("save_file", "write_text", "rmtree"):
            moments.append("torn")
        for when in moments:
            place = shutil.copytree(template, root / f"{number}-{when}")
            pid = os.fork()
            if pid == 0:
                WritePoints(number, when).install()
                save(place, 3)
                os._exit(0)
            _, status = os.waitpid(pid, 0)
            loaded = checkpoint_files.load_newest(place)
            at = loaded.parts["run"]["updates"]
            whole = not _different(loaded.parts, parts(at))
            save(place, 4)
            after = checkpoint_files.load_newest(place)
            outcomes.append(
                {
                    "point": f"{when} {name} ({number})",
                    "killed": os.WIFSIGNALED(status),
                    "loaded": at,
                    "whole": whole,
                    "next": after.parts["run"]["updates"],
                    "next whole": not after.rejected and not _different(after.parts, parts(4)),
                    "left": sorted(path.name for path in place.iterdir()),
                }
            )
            shutil.rmtree(place)
    Path(answer).write_text(json.dumps({"calls": every, "found": outcomes}))


def _different(one: Any, other: Any) -> bool:
    from tests.laws.problems import differences

    return bool(differences(one, other))
