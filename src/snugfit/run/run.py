"""The way of a run, from what is asked for to a finished folder: `execute(spec)`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

from snugfit.core.job import Plan
from snugfit.data.order import total_windows
from snugfit.data.quarantine import quarantine_text
from snugfit.data.sources import check_fingerprints
from snugfit.errors import Interrupted, OutOfMemory, RunFolderError, SnugfitError
from snugfit.report.story import mapping, read_story
from snugfit.results.run_folder import QUARANTINE, RunFolder
from snugfit.run.afterwards import Afterwards
from snugfit.run.description import by_source, describe_run, padding, versions
from snugfit.run.ending import (
    end_failed,
    explain_memory,
    finished_before,
    name_files,
    report,
    show_trackers,
    with_advice,
)
from snugfit.run.events import AGAIN, Events, Silent, goes_on, opened, warnings_as_events
from snugfit.run.spec import RunSpec
from snugfit.run.time_limit import TIME, fit_to_time
from snugfit.run.trackers import Register, Trackers
from snugfit.run.training.assemble import assemble
from snugfit.run.training.best import BestInMemory, ValidationDetails
from snugfit.run.training.loop import Training
from snugfit.run.training.result import RunResult
from snugfit.strategies.base import Strategy
from snugfit.strategies.process_group import agreed, answered, check_same, joined
from snugfit.strategies.registry import strategy_of
from snugfit.system.malloc import MMAP_THRESHOLD, tune_malloc
from snugfit.system.messages import held_warnings
from snugfit.system.processes import started_anew, this_world
from snugfit.system.rounding import ADDRESSES, changes, sums_depend_on_addresses
from snugfit.tasks.task import Task
from snugfit.tracking.spool import SMOKE, read_events
from snugfit.tracking.spool import Events as SpooledEvents

_DATA = "data.json"


def execute(spec: RunSpec) -> RunResult:
    """Train what a spec asks for: join the ranks, load, assemble, train under a tracker, deliver, report.

    Raises:
        UserError: a setting, the data or the model cannot be used; no run's folder is left behind.
        TrainingFailed: the run failed on its own account; the events say so too.
    """
    world = this_world()
    with joined_ranks(spec.plan, spec.timeout_seconds):
        if world.size > 1:
            check_same({**spec.same, "versions": versions()})
        with agreed():
            strategy = strategy_of(spec.plan, world)
        resume = spec.folder is not None and spec.resume and goes_on(spec.folder, strategy)
        length = None
        if spec.time is not None:
            spec, length = fit_to_time(spec, strategy, resume=resume)
        # the first rows of a stream are read here, and no event is written before there is a folder
        messages: list[str] = []
        with held_warnings(messages), agreed():
            job, task = spec.shorten(spec.job, spec.loaded(strategy))
        task = dataclasses.replace(task, messages=(*task.messages, *messages))
        if world.size > 1:
            rows = {"data.train": task.material.train, "data.validation": task.material.validation or ()}
            sizes = {f"{name} (rows)": len(each) for name, each in rows.items()}
            check_same({"data": dict(task.fingerprints), **sizes})
        folder = _folder(spec, task, strategy, resume=resume)
        in_memory = BestInMemory()
        with opened(folder, spec.display) if strategy.rank == 0 else nullcontext(Silent()) as events:
            # processes ended before they had saved anything
            again = (
                folder is not None and strategy.rank == 0 and not resume and folder.events.stat().st_size > 0
            )
            if length is not None:
                events(TIME, **length.as_dict(), message=length.message())
            updates = total_windows(job, task.material.train)
            training = assemble(
                job,
                spec.plan,
                task.material,
                spec.optimizer,
                spec.techniques,
                spec.metrics,
                folder=folder,
                emit=events,
                save_best=in_memory if folder is None else partial(task.save_best, folder.best),
                save_at=lambda place: partial(task.save_best, place),
                identity={**spec.identity, "updates": updates, **task.sources},
                files=task.fingerprints,
                accept_changes=spec.accept_changes,
                strategy=strategy,
            )
            training.observers = task.observers
            if spec.details and folder is not None:
                training.details = ValidationDetails.of(task, folder)
            if spec.predicted is not None:
                training.expect(spec.predicted)
            if strategy.rank > 0:
                return _follow(spec, training, resume=resume)
            if again:
                events("resume", update=0, window=0)
                events("warning", message=AGAIN)
            result = _lead(spec, task, training, events, resume=resume)
            return dataclasses.replace(result, afterwards=Afterwards(training, task, events, in_memory))


@contextmanager
def joined_ranks(plan: Plan, timeout_seconds: float) -> Iterator[None]:
    """Temporarily let the processes of this run exchange tensors; where they are joined already, nothing is done.

    Raises:
        RanksLost: others do not come, have ended, or do not answer in time.
    """
    with joined(this_world(), plan.device, timeout_seconds), answered(lambda: "before or after all updates"):
        yield


def _folder(spec: RunSpec, task: Task, strategy: Strategy, *, resume: bool) -> RunFolder | None:
    """Return the folder of the run, the same on all ranks, with what it begins with; None where it is to have none.

    Raises:
        DataError: files have changed since the run that is resumed began.
    """
    folder = spec.folder
    if folder is None:
        if spec.output is None:
            return None
        folder = _shared_folder(strategy, spec.output, spec.name)
    if spec.begin is None:
        return folder
    data = dict(task.fingerprints)
    if strategy.rank == 0 and (spec.folder is None or spec.time is not None):
        spec.begin(folder)
    if (
        spec.folder is not None
        and spec.resume
        and "data" not in spec.accept_changes
        and (resume or (folder.path / _DATA).exists())
    ):
        check_fingerprints(folder.read_json(_DATA), data, folder.in_commands)
    if strategy.rank == 0:
        folder.write_json(_DATA, data)
        if task.left_out:
            folder.write_text(QUARANTINE, quarantine_text(task.left_out))
    return folder


def _shared_folder(strategy: Strategy, output: Path, name: str) -> RunFolder:
    """Return the folder of a new run, the same on all ranks, of which the first one makes it.

    Raises:
        RunFolderError: it cannot be written.
    """
    if strategy.rank > 0:
        return RunFolder(Path(strategy.tell(None)[0]))
    folder = RunFolder.create(output, name)
    strategy.tell(str(folder.path))
    return folder


def _follow(spec: RunSpec, training: Training, *, resume: bool) -> RunResult:
    """Train as one of several processes of which another one says how it goes."""
    _tighten(spec, training)
    if resume:
        training.restore()
    training.fit()
    with warnings_as_events(training.emit), spec.stop as stop:
        return spec.conclude(training, training.run(stop))


def _lead(spec: RunSpec, task: Task, training: Training, events: Events, *, resume: bool) -> RunResult:
    """Train under a tracker, say how it ended, register the best model, write the report."""
    folder = training.folder
    earlier = _begin(spec, task, training, events, resume=resume)
    before = training.step.progress.windows
    trackers = Trackers(spec.tracking, folder, events)
    try:
        with warnings_as_events(events), spec.stop as stop:
            result = with_advice(spec.conclude(training, training.run(stop)), events)
    except BaseException as error:
        _end_failed(spec, training, events, error)
        trackers.close()
        if isinstance(error, KeyboardInterrupt):
            goes_on_from = None if folder is None or not folder.has_checkpoints else str(folder.path)
            raise Interrupted(goes_on_from) from error
        raise
    # a finished run that is resumed registers nothing anew
    trained = training.step.progress.windows > before
    if resume and not trained and result.status == "finished" and folder is not None:
        events("note", text=finished_before(folder))
    result = dataclasses.replace(result, seconds=result.seconds + earlier.seconds)
    result = dataclasses.replace(result, tracker_run_id=trackers.run_id)
    training.hooked("on_end", result)
    # before the tracker is waited for: who ends the process meanwhile leaves a run that has ended
    events("end", **result.as_dict())
    if folder is None:
        return result
    if training.details is not None:
        # what was kept goes without the columns of its rows, as where the run went on with others
        with suppress(SnugfitError, LookupError, TypeError, ValueError):
            training.details.finish()
    report(folder, events)
    show_trackers(spec.tracking, folder, events)
    register = _register(spec, task, folder) if trained and result.status == "finished" else None
    if trackers.end(register, partial(_describe, spec, folder, events)):
        report(folder, events)
    return dataclasses.replace(result, tracker_run_id=trackers.run_id)


def _begin(spec: RunSpec, task: Task, training: Training, events: Events, *, resume: bool) -> SpooledEvents:
    """Go on from the newest checkpoint where the run does, find the micro-batch, and say what the run is.

    Returns:
        The events of other processes that this run had before, whose time is the run's too.
    """
    folder = training.folder
    if message := started_anew():
        events("warning", message=message)
    for note in spec.notes:
        events("note", text=note)
    described: dict[str, Any] = {
        "recipe": dict(spec.recipe),
        "data": {**task.data, **by_source(training)},
        "example": task.example,
        "inputs": spec.inputs(task, training),
    }
    if spec.parent is not None:
        described["parent"] = spec.parent
    if spec.smoke is not None:
        described[SMOKE] = spec.smoke
    header = describe_run(spec.name, folder, training, spec.plan, described)
    earlier = SpooledEvents() if folder is None else read_events(folder.events)
    if _tighten(spec, training):
        header["machine"]["mmap_threshold_bytes"] = MMAP_THRESHOLD
    if resume:
        training.restore()
    _fit(training, events, header)
    header["plan"]["micro_batch"] = training.step.micro_batch
    header["data"].update(padding(training))
    training.description = {part: header[part] for part in ("recipe", "plan", "versions")}
    warnings = [*spec.warnings, *task.messages]
    if resume:  # most of what was read and drawn was said when the run began
        earlier_messages = {event.get("message") for event in earlier if event["event"] == "warning"}
        last_bits = _last_bits(training, header["machine"])
        warnings = [*last_bits, *(each for each in warnings if each not in earlier_messages)]
    events("run", **header)
    for message in warnings:
        events("warning", message=message)
    return earlier


def _end_failed(spec: RunSpec, training: Training, events: Events, error: BaseException) -> None:
    """Say how a run failed, in its events and its report, and whether memory ran out with what in it."""
    if isinstance(error, OutOfMemory):
        explain_memory(training, events, error)
    end_failed(training, events, error)
    if events.begun and training.folder is not None:
        report(training.folder, events)
        show_trackers(spec.tracking, training.folder, events)


def _describe(spec: RunSpec, folder: RunFolder, events: Events) -> None:
    """Write the report anew, and name it to the tracker that keeps it."""
    report(folder, events)
    if spec.tracking is not None:
        name_files(spec.tracking, folder, events)


def _register(spec: RunSpec, task: Task, folder: RunFolder) -> Register | None:
    """Return what registers the best model, where that was asked for."""
    to = spec.tracking
    if to is None or to.uri is None or to.register is None:
        return None
    return partial(to.register, task, folder, to.uri)


def _tighten(spec: RunSpec, training: Training) -> bool:
    """Have memory that tensors no longer need go back at once, where that was asked for and can be done."""
    # weights that are gathered and freed would leave more behind in the C library than sharding them saves
    wanted = spec.tight or training.step.strategy.shards
    return wanted and training.step.device.type == "cpu" and tune_malloc()


def _last_bits(training: Training, machine: Mapping[str, Any]) -> list[str]:
    """Return what keeps a run that goes on from being bit for bit the one that was not interrupted."""
    reasons = [ADDRESSES] if training.step.device.type == "cpu" and sums_depend_on_addresses() else []
    assert training.folder is not None  # of a run that goes on
    with suppress(RunFolderError):
        before = mapping(read_story(training.folder.path).run.get("machine"))
        change = changes(before, machine)
        reasons += [] if change is None else [change]
    return reasons


def _fit(training: Training, events: Events, header: Mapping[str, Any]) -> None:
    """Find the micro-batch, if that is asked for; a run for which there is none has failed, and its folder says why.

    Raises:
        As `Training.fit`.
    """
    try:
        with warnings_as_events(events):
            training.fit()
    except OutOfMemory as error:
        events("run", **header)
        explain_memory(training, events, error)
        end_failed(training, events, error)
        raise
