"""A run from its folder to its report: tracker, training, registry."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from snugfit.core.job import Plan
from snugfit.core.parameters import decayed_parameters
from snugfit.errors import Interrupted, OutOfMemory, RunFolderError, SnugfitError, TrackingError
from snugfit.planner.worker import Watch, ignore
from snugfit.report.advice import advise
from snugfit.report.page import write_report
from snugfit.report.story import mapping, read_story
from snugfit.results.run_folder import RunFolder
from snugfit.run.checkpoint import checkpoint
from snugfit.run.events import Events
from snugfit.run.training.loop import Training
from snugfit.run.training.result import RunResult
from snugfit.run.training.stop import StopRequest, interrupts
from snugfit.run.training.warning_events import warnings_told
from snugfit.step.build import describe_model
from snugfit.system.malloc import MMAP_THRESHOLD, tune_malloc
from snugfit.system.mkl_mode import ADDRESSES, arithmetic, changes, sums_depend_on_addresses
from snugfit.tracking.follower import Tracker, TrackingResult
from snugfit.tracking.spool import read_events, worked_seconds

if TYPE_CHECKING:
    from snugfit.tasks import Sides


def no_line() -> AbstractContextManager[Watch]:
    """Show nothing of a search."""
    return nullcontext(ignore)


@dataclass(frozen=True)
class RunOptions:
    """What one call asks of a run, beside its recipe. `plan`: it is planned before it begins.
    `tight`: on a CPU, memory that tensors no longer need goes back to the system at once, which takes time.
    `sides`: the rows of Python data to train on and to validate on. `parent`: the tracker's run that this one is a part of.
    `accept_changes`: what may differ from the run that is resumed, by the names of its identity.
    `stop`: asked after every window; the reason to stop, or None. `into`: the run's folder, where whoever started the process has made
    it; a run that has a checkpoint there goes on from it. `replan`: it is
    planned anew even where a plan is kept. `search_line`: shows, while it lasts, how far the search for a plan is."""

    stop_after_seconds: float | None = None
    fast_dev_run: bool = False
    overfit_batches: int | None = None
    plan: bool = False
    tight: bool = False
    sides: Sides | None = None
    parent: str | None = None
    stop: Callable[[], str | None] = lambda: None
    into: Path | None = None
    replan: bool = False
    accept_changes: tuple[str, ...] = ()
    search_line: Callable[[], AbstractContextManager[Watch]] = no_line
    started: float = field(default_factory=time.monotonic)


@dataclass(frozen=True)
class Tracking:
    """Where a run is tracked. `register` stores the best model and says how; None registers nothing."""

    uri: str
    experiment: str = "snugfit"
    register: Callable[[RunFolder, str, str | None], Mapping[str, Any]] | None = None


def run_session(
    training: Training,
    events: Events,
    header: Mapping[str, Any],
    *,
    notes: Sequence[str] = (),
    tracking: Tracking | None,
    options: RunOptions,
    resume: bool,
    conclude: Callable[[RunResult], RunResult] = lambda result: result,
) -> RunResult:
    """Train under a tracker, say how it ended, register the best model, write the report.

    `notes` are said once the run is, but for one that goes on; `conclude` may look at the run and add to its result before its end is said.

    Raises:
        TrainingFailed: the run failed on its own account; the events say so too.
    """
    folder = training.folder
    earlier = read_events(folder.events, raw=True)  # of other processes, whose time is the run's too
    if _tightened(training, options):
        header = {**header, "machine": {**header["machine"], "mmap_threshold_bytes": MMAP_THRESHOLD}}
    if resume:
        training.restore()
    _fit(training, events, header)
    header = {**header, "plan": {**header["plan"], "micro_batch": training.step.micro_batch}}
    training.description = {part: header[part] for part in ("recipe", "plan", "versions")}
    before = training.step.progress.windows
    # what was read and drawn was said when the run began
    remarks = _last_bits(training, header["machine"]) if resume else notes
    events("run", **header)
    for note in remarks:
        events("warning", message=note)
    tracker = None
    if tracking is not None:
        tracker = Tracker(
            folder.path,
            uri=tracking.uri,
            experiment=tracking.experiment,
            say=lambda text: events("note", text=text),
        ).start()
        if tracker.problem:
            events("warning", message=f"{tracker.problem} Events are kept in {folder.events.name}.")
    try:
        with (
            warnings_told(events),
            StopRequest(options.stop_after_seconds, options.started, options.stop) as stop,
        ):
            result = _advised(conclude(training.run(stop)), folder)
    except BaseException as error:
        if isinstance(error, OutOfMemory):
            _tell_of_memory(training, events, error)
        _end_failed(training, events, error)
        if events.begun:
            _report(folder, events)
        if tracker is not None:
            with interrupts():
                tracker.close()
        if isinstance(error, KeyboardInterrupt):
            raise Interrupted(str(folder.path) if checkpoint.any_in(folder.checkpoints) else None) from error
        raise
    result = dataclasses.replace(result, seconds=result.seconds + worked_seconds(earlier))
    if tracker is not None:
        result = dataclasses.replace(result, tracker_run_id=tracker.run_id)
    # before the tracker is waited for: who ends the process meanwhile leaves a run that has ended
    events("end", **result.as_dict())
    _report(folder, events)
    if tracking is not None and tracker is not None:
        trained = (
            training.step.progress.windows > before
        )  # a finished run that is resumed registers nothing anew
        registers = tracking.register is not None and result.status == "finished" and trained
        if _end_tracking(tracking, tracker, folder, events, registers=registers):
            _report(folder, events)
        result = dataclasses.replace(result, tracker_run_id=tracker.run_id)
    return result


def _end_tracking(
    tracking: Tracking, tracker: Tracker, folder: RunFolder, events: Events, *, registers: bool
) -> bool:
    """Send the last events, register the best model, and say what did not reach the tracker; a signal to stop ends each wait.

    Returns:
        Whether there is more to report than before.
    """
    with interrupts():
        sent = tracker.flush()
        if registers:
            _register(tracking, folder, sent, events)
    with interrupts():
        message = tracker.close().message(folder.path)
        if message is not None:
            events("warning", message=message)
        return registers or message is not None
    return True


def follow(
    training: Training,
    options: RunOptions,
    resume: bool,
    conclude: Callable[[RunResult], RunResult] = lambda result: result,
) -> RunResult:
    """Train as one of several processes of which another one tells how it goes.

    Raises:
        TrainingFailed: the run failed on its own account.
    """
    _tightened(training, options)
    if resume:
        training.restore()
    training.fit()
    with (
        warnings_told(training.emit),
        StopRequest(options.stop_after_seconds, options.started, options.stop) as stop,
    ):
        return conclude(training.run(stop))


def _tightened(training: Training, options: RunOptions) -> bool:
    """Have memory that tensors no longer need go back at once, where that was asked for and can be done."""
    return options.tight and training.step.device.type == "cpu" and tune_malloc()


def _last_bits(training: Training, machine: Mapping[str, Any]) -> list[str]:
    """Return what keeps a run that goes on from being bit for bit the one that was not interrupted."""
    found = [ADDRESSES] if training.step.device.type == "cpu" and sums_depend_on_addresses() else []
    with suppress(RunFolderError):
        before = mapping(read_story(training.folder.path).run.get("machine"))
        change = changes(before, machine)
        found += [] if change is None else [change]
    return found


def _fit(training: Training, events: Events, header: Mapping[str, Any]) -> None:
    """Find the micro-batch, if that is asked for; a run for which there is none has failed, and its folder says why.

    Raises:
        As `Training.fit`.
    """
    try:
        with warnings_told(events):
            training.fit()
    except OutOfMemory as error:
        events("run", **header)
        _tell_of_memory(training, events, error)
        _end_failed(training, events, error)
        raise


def _advised(result: RunResult, folder: RunFolder) -> RunResult:
    """The result with what its evaluations say about its length; a run is not lost to events that cannot be read."""
    with suppress(RunFolderError):
        story = read_story(folder.path)
        if result.status == "finished" and story.evaluations:
            return dataclasses.replace(result, advice=advise(story).as_dict())
    return result


def _register(tracking: Tracking, folder: RunFolder, sent: TrackingResult, events: Events) -> None:
    assert tracking.register is not None
    if sent.unsent or sent.run_id is None:
        events(
            "warning", message=f"the best model was not registered: {sent.problem or 'the tracker is behind'}"
        )
        return
    try:
        events("register", **tracking.register(folder, tracking.uri, sent.run_id))
    except TrackingError as error:
        events("warning", message=f"the best model was not registered: {error}")
    except KeyboardInterrupt:
        events("warning", message="the best model was not registered: interrupted.")


def _report(folder: RunFolder, events: Events) -> None:
    """Write the page; a run that trained is not lost to a page that cannot be written."""
    try:
        write_report(folder.path)
    except RunFolderError as error:
        with suppress(SnugfitError):
            events("warning", message=f"no report: {error}")


def _tell_of_memory(training: Training, events: Events, error: OutOfMemory) -> None:
    """Look at what took the memory, write it as a page into the run's folder, and say so in the error, which stays the one that is
    raised whatever becomes of that."""
    if (
        training.attempt is None or training.step.strategy.world_size > 1
    ):  # the others would have to do it too
        return
    try:
        # what few runs need, and takes long to import
        from snugfit.planner.trace.memory_use import memory_of_failure
        from snugfit.report.memory_page import NAME, piece_words, write_memory_page

        folder = training.folder.path
        use, again = memory_of_failure(training.step, training.attempt, folder)
        path = write_memory_page(folder.name, use, folder / NAME, again=again)
    except Exception as problem:  # noqa: BLE001 - a model that has just failed may fail in any way
        with suppress(SnugfitError):
            events("warning", message=f"no page about the memory: {problem}")
        return
    error.args = (f"{error} {piece_words(use)} The page about it: {path}", *error.args[1:])


def _end_failed(training: Training, events: Events, error: BaseException) -> None:
    reason = (
        str(error) if isinstance(error, SnugfitError) else f"{type(error).__name__}: {error}".rstrip(": ")
    )
    progress = training.step.progress
    resumable = checkpoint.any_in(training.folder.checkpoints)
    interrupted = isinstance(error, KeyboardInterrupt)
    # the first error is the one to see, also when the disk is full
    with suppress(SnugfitError):
        events(
            "end",
            status="stopped" if interrupted and resumable else "failed",
            stop_reason=reason,
            resumable=resumable,
            updates=progress.updates,
            epochs=training.epoch,
            best=None,
            last={"metrics": {}},
        )


def python_inputs(training: Training, sources: Mapping[str, tuple[str, Any]]) -> list[dict[str, Any]]:
    """Return rows that Python makes as a run describes its sources: with a digest of those that a resume compares.

    Args:
        sources: by `train` and `validation` the name of a function or a class, and the data set where there is one to look at.
    """
    compared, found = training.identity["data"], []
    for context, (name, data) in sources.items():
        if context not in compared:
            continue
        rows = compared[context]
        digest = hashlib.sha256(json.dumps(rows, sort_keys=True).encode()).hexdigest()
        columns = getattr(data, "column_names", None)  # of the datasets library
        known = isinstance(columns, list) and all(isinstance(each, str) for each in columns)
        found.append(
            {
                "context": context,
                "source": name,
                "sha256": digest,
                "is_code": True,
                "rows": rows["rows"],
                "columns": columns if known else [],
            }
        )
    return found


def describe_run(
    name: str, folder: RunFolder, training: Training, plan: Plan, described: Mapping[str, Any]
) -> dict[str, Any]:
    """What a run says of itself before it trains."""
    return {
        "name": name,
        "id": folder.id,
        "run_dir": str(folder.path),
        "plan": dataclasses.asdict(plan),
        "versions": versions(),
        "machine": machine(plan.device),
        "parameters": describe_model(training.step.model),
        "weight_decay": decayed_parameters(training.step.optimizer.param_groups),
        "total_updates": training.total_windows,
        "updates_per_epoch": training.loader.order.windows_per_epoch,
        **described,
    }


def versions() -> dict[str, str]:
    """Versions of what the result may depend on."""
    found = {"python": platform.python_version(), "torch": torch.__version__}
    for package in ("snugfit", "transformers", "tokenizers", "mlflow", "numpy"):
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def machine(device: str) -> dict[str, Any]:
    """What the run runs on."""
    found: dict[str, Any] = {
        "platform": platform.platform(),
        "cores": os.cpu_count(),
        **arithmetic(),
        "device": device,
        "program": Path(sys.argv[0]).name,
    }
    if device.startswith("cuda"):
        found["gpu"] = torch.cuda.get_device_name()
    return found
