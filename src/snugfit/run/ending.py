"""The end of a run: its result, its report, and the reason where it failed."""

from __future__ import annotations

import dataclasses
import os
import shlex
from contextlib import suppress

from snugfit.errors import OutOfMemory, RunFolderError, SnugfitError
from snugfit.report.advice import advise
from snugfit.results.run_folder import PICTURES, RECIPE, RunFolder
from snugfit.run.events import DOING, Events
from snugfit.run.trackers import Tracking
from snugfit.run.training.loop import Training
from snugfit.run.training.result import RunResult


def with_advice(result: RunResult, events: Events) -> RunResult:
    """Return the result with what its evaluations say about its length; a run is not lost to events that cannot be read."""
    with suppress(RunFolderError):
        story = events.story()
        if result.status == "finished" and story.evaluations:
            return dataclasses.replace(result, advice=advise(story).as_dict())
    return result


def finished_before(folder: RunFolder) -> str:
    """Return what is said of a run that had finished when it was resumed, and how a longer one is begun."""
    recipe = folder.path / RECIPE
    longer = (
        f"snugfit train {shlex.quote(os.path.relpath(recipe))} train.epochs=N"
        if recipe.exists()
        else "sf.train(…, epochs=N)"
    )
    return f"resume    the run had finished, and nothing was trained. A longer one is a new run: {longer}"


def report(folder: RunFolder, events: Events) -> None:
    """Write the page; a run that trained is not lost to a page that cannot be written."""
    from snugfit.report.page import write_report

    try:
        write_report(folder.path)
    except RunFolderError as error:
        with suppress(SnugfitError):
            events("warning", message=f"no report: {error}")


def show_trackers(tracking: Tracking | None, folder: RunFolder, events: Events) -> None:
    """Name the files that describe the run to its trackers, and draw the report's charts for those that show pictures."""
    if tracking is None:
        return
    if any(each.pictures for each in tracking.others):
        _draw_report(folder, events)
    name_files(tracking, folder, events)


def name_files(tracking: Tracking, folder: RunFolder, events: Events) -> None:
    """Name the files that describe the run to MLflow, which keeps them with it."""
    if tracking.uri is not None:
        with suppress(SnugfitError):
            events("files", files=folder.described_by)


def _draw_report(folder: RunFolder, events: Events) -> None:
    """Draw the charts; a run that trained is not lost to them."""
    try:
        from snugfit.report.chart_pictures import write_charts

        events(DOING, text="drawing the report for trackers")
        if drawn := write_charts(folder.path, folder.path / PICTURES):
            named = {f"report/{name}": f"{PICTURES}/{path.name}" for name, path in drawn.items()}
            events("pictures", update=events.story().last_update, pictures=named)
    except Exception as error:  # noqa: BLE001 - who draws may fail in any way, and an error of the run is the one to see
        with suppress(SnugfitError):
            events("warning", message=f"no pictures of the report for trackers: {error}")


def explain_memory(training: Training, events: Events, error: OutOfMemory) -> None:
    """Look at what took the memory, write it as a page into the run's folder, and say so in the error.

    The error stays the one that is raised whatever becomes of that.
    """
    if (
        training.attempt is None or training.step.strategy.world_size > 1
    ):  # the others would have to do it too
        return
    try:
        # what few runs need, and takes long to import
        from snugfit.planner.trace.memory_breakdown import memory_of_failure
        from snugfit.report.memory_page import NAME, piece_words, write_memory_page

        folder = None if training.folder is None else training.folder.path
        use, again = memory_of_failure(training.step, training.attempt, folder)
        page = ""
        if folder is not None:
            page = f" The page about it: {write_memory_page(folder.name, use, folder / NAME, again=again)}"
    except Exception as problem:  # noqa: BLE001 - a model that has just failed may fail in any way
        with suppress(SnugfitError):
            events("warning", message=f"no page about the memory: {problem}")
        return
    error.args = (f"{error} {piece_words(use)}{page}", *error.args[1:])


def end_failed(training: Training, events: Events, error: BaseException) -> None:
    """Say that the run has failed, or was interrupted, and why."""
    reason = (
        str(error) if isinstance(error, SnugfitError) else f"{type(error).__name__}: {error}".rstrip(": ")
    )
    progress = training.step.progress
    resumable = training.folder is not None and training.folder.has_checkpoints
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
