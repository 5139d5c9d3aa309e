"""The checkpoints of a run: writing one of this moment, at once or while the training goes on, and going on from the newest; or none, where a run has no folder."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import torch
import torch.distributed as dist

from snugfit.core.job import Job, MicroBatch
from snugfit.core.progress import Progress
from snugfit.core.technique import Stateful
from snugfit.data.loader import Loader
from snugfit.errors import RanksLost, RunFolderError, SaidElsewhere, SnugfitError
from snugfit.kit.phases import phase
from snugfit.kit.serialize import Packed, pack
from snugfit.results.run_folder import RunFolder, checkpoints_in
from snugfit.run.checkpoint import checkpoint_files, sharded_files
from snugfit.run.checkpoint.host_copy import Snapshot
from snugfit.run.events import Emit
from snugfit.run.identity.identity import VERSION, as_plain, batch_norm_identity, check_identity
from snugfit.step.state import state_like
from snugfit.step.step import Step
from snugfit.strategies.process_group import agreed

_TECHNIQUES = "techniques/"
_WINDOW_SIZES = ("global_batch", "batch_tokens")
"""Settings by which windows are made."""


class KeptNumbers(Protocol):
    """Numbers that go on where a checkpoint has left them."""

    def state(self) -> list[float]:
        """Return what a checkpoint keeps."""
        ...

    def load(self, state: Sequence[float]) -> None:
        """Go on from what a checkpoint has kept."""
        ...


class SavedTraining(Protocol):
    """A training, to what saves it and takes it up again."""

    job: Job
    step: Step
    loader: Loader
    planned: MicroBatch
    last_metrics: dict[str, float]
    identity: Mapping[str, Any]
    description: Mapping[str, Any]
    accept_changes: Sequence[str]
    emit: Emit

    @property
    def watch(self) -> Stateful:
        """Return the evaluations so far."""
        ...

    @property
    def train_loss(self) -> KeptNumbers:
        """Return the mean loss since the last evaluation."""
        ...

    def hooked(self, name: str, seen: Any) -> None:
        """Call a hook of the user's."""
        ...


@dataclass
class _Save:
    """A checkpoint that is being written.

    Args:
        event: what its event says, but for its times.
        started: a `time.monotonic()`.
        blocked: seconds for which the training has waited.
        seconds: from its start to its end.
    """

    event: Mapping[str, Any]
    started: float
    blocked: float = 0.0
    seconds: float = 0.0
    done: Future[None] = field(default_factory=Future)

    def begin(self, write: Callable[[], None], on_thread: bool) -> None:
        """Write here, or beside on a thread, which ends with the process: what is not whole then is not there."""

        def run() -> None:
            try:
                write()
            except BaseException as error:  # noqa: BLE001 - the training raises it
                self.done.set_exception(error)
            else:
                self.seconds = time.monotonic() - self.started
                self.done.set_result(None)

        if on_thread:
            threading.Thread(target=run, name="checkpoint", daemon=True).start()
        else:
            run()
        self.blocked = time.monotonic() - self.started

    def wait(self) -> BaseException | None:
        """Return what went wrong with it, once it is at its end."""
        start = time.monotonic()
        problem = self.done.exception()
        self.blocked += time.monotonic() - start
        return problem


class Saving:
    """The saver of a run, which takes it up again too.

    With `checkpoint.save: async` a save copies what it is about, and a thread writes the copy while the
    training goes on; one at a time.

    A checkpoint that the disk does not take is told, and the training goes on: the next save tries again. `problem` is what the last save
    has failed of, the same on all ranks.

    Within it the run trains. An error leaves it once the save under way is at its end, but for Ctrl-C, and for the loss of other ranks
    that would have to write too.
    """

    def __init__(self, training: SavedTraining, folder: RunFolder) -> None:
        self._training, self._folder = training, folder
        self._strategy = training.step.strategy
        # what a thread writes is a copy
        self._snapshot = Snapshot() if training.job.checkpoint.save == "async" else None
        self._group: dist.ProcessGroup | None = None
        self._under_way: _Save | None = None
        self.problem: str | None = None

    def save(self) -> None:
        """Write a checkpoint of this moment, or begin to; it is the same whatever ranks it was made by, which all call this."""
        self.finish()
        self._begin()
        if self._snapshot is None:
            self.finish()

    def poll(self) -> bool:
        """Tell of the save under way if it is written; whether it could not be."""
        save = self._under_way
        if save is None or not save.done.done():
            return False
        if save.done.exception() is not None:
            return True  # which `finish` raises
        self._settle()
        return False

    def finish(self) -> None:
        """Wait for the save under way; all ranks call it, and all find then what was saved."""
        was_under_way, error = self._under_way is not None, self._settle()
        message = None if error is None else str(error) or type(error).__name__
        outcomes = self._strategy.tell((was_under_way, message, isinstance(error, RunFolderError)))
        if error is not None and not isinstance(error, RunFolderError):
            raise error  # none of the disk's
        failed = [(message, of_disk) for _, message, of_disk in outcomes if message is not None]
        for message, of_disk in failed:
            if not of_disk:
                raise SaidElsewhere.from_text(message)
        if any(under_way for under_way, _, _ in outcomes):
            self.problem = failed[0][0] if failed else None

    def any(self) -> bool:
        """Return whether the first rank has a checkpoint to go back to; all ranks call it."""
        self.finish()
        # another host may see the folder later than the one that has written it
        return bool(self._strategy.tell(self._folder.has_checkpoints)[0])

    def load(self, compare: bool = True) -> tuple[str, ...]:
        """Take the state of the newest valid checkpoint.

        Returns sentences on newer ones that are damaged, and on what could not be compared.

        Raises:
            RunFolderError: there is none, or it is of a run of other settings or data.
            SettingError: it is of another model, optimizer or set of techniques.
        """
        self.finish()
        with agreed():
            loaded = checkpoint_files.load_newest(self._folder.checkpoints)
        names = self._strategy.tell(loaded.folder.name)
        if len({*names}) > 1:
            raise RunFolderError(
                "resume",
                f"the newest checkpoints that the ranks find are {', '.join(names)}",
                "Give all hosts the same folder as output.",
            )
        notes = take(self._training, loaded.parts, compare, self._folder.in_commands)
        damaged = (f"checkpoint passed over, it is damaged: {reason}" for reason in loaded.rejected)
        return (*damaged, *notes)

    def __enter__(self) -> Saving:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        lost = isinstance(error, RanksLost) and self._group is not None
        if isinstance(error, Exception) and not lost:
            with suppress(SnugfitError):  # the first error is the one to see, also when the disk is full
                self._settle()
        if error is None and self._group is not None:
            dist.destroy_process_group(self._group)
            self._group = None
        if self._snapshot is not None:
            self._snapshot = Snapshot()  # gives the memory of the last copy back

    def _begin(self) -> None:
        start = time.monotonic()
        training, progress = self._training, self._training.step.progress
        with phase("save"):
            packed = pack(parts_of(training))
            if self._strategy.rank > 0 and not packed.sharded:
                return
            final = self._folder.checkpoints / _name(progress)
            path = final.relative_to(self._folder.path).as_posix()
            save = _Save({"update": progress.updates, "window": progress.windows, "path": path}, start)
            if self._snapshot is not None:
                packed = self._snapshot.take(packed)
                if packed.sharded and self._group is None:  # in the default one the training goes on
                    self._group = dist.new_group(backend="gloo")
            save.begin(partial(self._write, final, packed), on_thread=self._snapshot is not None)
        self._under_way = save

    def _settle(self) -> BaseException | None:
        """Wait for the save under way, if there is one, and tell of it, or of what went wrong, which is returned."""
        save, self._under_way = self._under_way, None
        if save is None:
            return None
        problem = save.wait()
        if problem is None:
            times = {"seconds": save.seconds, "blocked_seconds": save.blocked}
            self._training.emit("checkpoint", **save.event, **times)
            self._training.hooked("on_checkpoint", self._folder.path / save.event["path"])
        else:
            there = checkpoints_in(self._folder.checkpoints)
            stands = f"the newest one is {there[0].name}" if there else "there is no checkpoint yet"
            message = (
                f"{problem} The training goes on and saves again when the next checkpoint is due; {stands}."
            )
            self._training.emit("warning", message=message)
        return problem

    def _write(self, final: Path, packed: Packed) -> None:
        device = self._training.step.device
        if device.type != "cpu":  # a thread begins with the first one
            torch.accelerator.set_device_index(device)
        self._folder.check_there()
        checkpoint_files.write(final, packed, self._training.job.checkpoint.keep, self._strategy, self._group)


def parts_of(training: SavedTraining) -> dict[str, Any]:
    """Return what a checkpoint holds, by file; live tensors."""
    state = training.step.state_dict()
    return {
        "model": {kind: state[kind] for kind in ("parameters", "buffers", "modules")},
        "run": {
            "step": {key: state[key] for key in ("optimizer", "progress", "padding", "inputs")},
            "micro_batch": {"planned": training.planned, "used": training.step.micro_batch},
            "watch": training.watch.state_dict(),
            "last_metrics": training.last_metrics,
            "train_loss": training.train_loss.state(),
            "stream": _stream_position(training),
            "identity": {**training.identity, **_batch_norm(training, training.step.micro_batch)},
            "identity_version": VERSION,
            "description": dict(training.description),
        },
        **{f"{_TECHNIQUES}{name}": part for name, part in state["techniques"].items()},
    }


def take(
    training: SavedTraining, parts: Mapping[str, Any], compare: bool = True, folder: str = "RUN"
) -> list[str]:
    """Go on from what a checkpoint holds; returns sentences on what differs and is accepted, and on what could not be compared.

    Args:
        folder: the run's, for commands.
    Raises:
        RunFolderError: it is of a run of other settings, data or code.
        SettingError: it is of another model, optimizer or set of techniques.
    """
    run, step = parts["run"], training.step
    micro_batch = _micro_batch(training, run["micro_batch"])
    own = {**training.identity, **_batch_norm(training, micro_batch)}
    notes: list[str] = []
    if compare:
        with agreed():
            notes = check_identity(
                run["identity"], own, training.accept_changes, run.get("identity_version", 1), folder
            )
            notes += _counted_on(training, run)
            _go_on_reading(training, run)
    techniques = {
        name.removeprefix(_TECHNIQUES): part for name, part in parts.items() if name.startswith(_TECHNIQUES)
    }
    state = {**parts["model"], **run["step"], "techniques": techniques}
    step.load_state_dict(sharded_files.loaded(state, state_like(step, state)))
    step.micro_batch = micro_batch
    training.watch.load_state_dict(run["watch"])
    training.last_metrics = run["last_metrics"]
    training.train_loss.load(run.get("train_loss", (0.0, 0)))  # older checkpoints have none
    return notes


def _counted_on(training: SavedTraining, run: Mapping[str, Any]) -> list[str]:
    """Return where a run stands whose windows have another size now, which was accepted."""
    windows = run["step"]["progress"]["windows"]
    then, now = (_window_sizes(each) for each in (run["identity"], as_plain(training.identity)))
    if not any(size not in (None, own) for size, own in zip(then, now, strict=True)):
        return []
    epochs = training.loader.order.cuts.epochs_after(windows)
    return [
        f"resume: the run stands by its count of updates, as if each had had the size of now: after {windows:,} it is at epoch {epochs:.3g}, where rows are "
        "read on. Start a new run to see every row as often."
    ]


def _window_sizes(identity: Mapping[str, Any]) -> list[Any]:
    """Return what an identity, of a call or of a recipe, says of the sizes of windows."""
    recipe = identity.get("recipe")
    settings = recipe.get("train", {}) if isinstance(recipe, Mapping) else identity
    return [settings.get(name) for name in _WINDOW_SIZES]


def _batch_norm(training: SavedTraining, micro_batch: int | None) -> dict[str, Any]:
    """Return in what parts batch norm sees a window, which is a part of the run's identity."""
    train, loader = training.job.train, training.loader
    return batch_norm_identity(training.step, train, loader, training.planned, micro_batch)


def _stream_position(training: SavedTraining) -> list[Any] | None:
    """Return how far a stream has been read until now; None where that is not known, or nothing is streamed."""
    examples = training.loader.order.cuts.examples_after(training.step.progress.windows)
    position = training.loader.stream_position(examples)
    return None if position is None else list(position)


def _go_on_reading(training: SavedTraining, run: Mapping[str, Any]) -> None:
    """Go on with a stream where a run was, and see that it gives the rows again that the run was trained on.

    Raises:
        DataError: it gives others.
    """
    saved, stream = run.get("stream"), training.loader.stream
    if saved is None or stream is None or "data" in training.accept_changes:
        return
    windows = run["step"]["progress"]["windows"]
    stream.go_on(training.loader.order.cuts.examples_after(windows), saved)


def _micro_batch(training: SavedTraining, saved: Mapping[str, Any]) -> int | None:
    """Return the micro-batch to go on in: what it had come to, unless another plan was made."""
    own, used = training.step.micro_batch, saved["used"]
    if saved["planned"] != training.planned or used is None:
        return own
    return int(used if own is None else min(own, used))


def _name(progress: Progress) -> str:
    """Return the name of the checkpoint of a moment; that of a later one is greater."""
    name = f"update-{progress.updates:08d}"
    if progress.windows != progress.updates:  # the same weights at another place of the data
        name += f"-window-{progress.windows:08d}"
    return name


class Unsaved:
    """A stand-in for `Saving` where a run has no folder: there are no checkpoints, and nothing to go back to."""

    problem: str | None = None

    def save(self) -> None:
        """Leave it at that."""

    def poll(self) -> bool:
        """Return that nothing has failed."""
        return False

    def finish(self) -> None:
        """Nothing is under way."""

    def any(self) -> bool:
        """Return that there is no checkpoint."""
        return False

    def load(self, compare: bool = True) -> tuple[str, ...]:
        """Refuse to go on.

        Raises:
            RunFolderError
        """
        del compare
        raise RunFolderError("resume", "a run without a folder has no checkpoint", "Give output, a folder.")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        """Nothing is under way."""
