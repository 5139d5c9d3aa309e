"""Smoke runs: every path in seconds, and whether the model can memorise."""

from __future__ import annotations

import dataclasses
from functools import partial

import torch
from torch.utils.data import Subset

from snugfit.core.job import Job
from snugfit.core.schedule import Schedule
from snugfit.core.technique import Technique
from snugfit.core.tree import leaves
from snugfit.data.order import training_order
from snugfit.errors import TrainingFailed
from snugfit.results.run_folder import RunFolder
from snugfit.run.spec import RunSpec
from snugfit.run.training.loop import Training
from snugfit.run.training.result import RunResult
from snugfit.tasks.task import Task
from snugfit.tracking.spool import read_events

DEV_WINDOWS = 2
OVERFIT_PASSES = 150
MEMORISED_LOSS = 0.1
MEMORISED_ACCURACY = 0.99


def as_smoke(spec: RunSpec, overfit_batches: int | None) -> RunSpec:
    """Return a run cut down to a smoke run: of a few windows, or of many passes over a few batches."""
    if overfit_batches is None:
        return dataclasses.replace(spec, smoke="--fast-dev-run", shorten=_few_windows, conclude=_reloaded)
    # a rate that falls would end the learning before the memorising
    techniques = [each for each in spec.techniques if not _lowers_rate(each)]
    shorten = partial(_few_rows, overfit_batches)
    which = "one batch" if overfit_batches == 1 else f"the same {overfit_batches} batches"
    note = f"overfit   {OVERFIT_PASSES} passes over {which}, in place of the length of the recipe; a schedule that lowers the rate is left out"
    return dataclasses.replace(
        spec,
        smoke="--overfit-batches",
        techniques=techniques,
        shorten=shorten,
        conclude=_judged,
        notes=(*spec.notes, note),
    )


def _few_rows(batches: int, job: Job, task: Task) -> tuple[Job, Task]:
    data, job = task.material.train, dataclasses.replace(job.grown(), shuffle=True)
    order = training_order(job, data)  # the file's own order may be by label
    windows = range(min(batches, order.windows_per_pass))
    few = Subset(data, [index for window in windows for _, index in order.window(window)])
    passes = len(windows) * OVERFIT_PASSES
    job = dataclasses.replace(_to_the_end(job, passes, passes), shuffle=False)
    material = dataclasses.replace(task.material, train=few, validation=few)
    return job, dataclasses.replace(task, material=material)


def _few_windows(job: Job, task: Task) -> tuple[Job, Task]:
    validation = task.material.validation
    windows = min(DEV_WINDOWS, training_order(job, task.material.train).windows_per_pass)
    if validation is not None:
        rows = min(job.evaluation_batch, len(validation))
        validation = Subset(validation, range(rows))
    job = _to_the_end(job, windows, 1)
    material = dataclasses.replace(task.material, validation=validation)
    return job, dataclasses.replace(task, material=material)


def _to_the_end(job: Job, updates: int, every: int) -> Job:
    """Return the job with another length and another time of evaluation, which no rule stops before its end."""
    return dataclasses.replace(
        job.for_updates(updates),
        evaluate=dataclasses.replace(job.evaluate, every=every),
        early_stopping=None,
    )


def _lowers_rate(technique: Technique) -> bool:
    """Return whether it is a schedule that can be left out: no optimizer with one of its own, and not what sets the rate."""
    seams = technique.card.seams
    if "schedule" not in seams or "optimizer" in seams:
        return False
    return not (isinstance(technique, Schedule) and technique.sets_scale())


def _reloaded(training: Training, result: RunResult) -> RunResult:
    verify_reload(training)
    return dataclasses.replace(result, resumable=False)


def _judged(training: Training, result: RunResult) -> RunResult:
    assert training.folder is not None
    result = dataclasses.replace(result, resumable=False)
    return overfit_verdict(result, training.folder) if training.step.strategy.rank == 0 else result


def verify_reload(training: Training) -> None:
    """Load the newest checkpoint into the run and compare: what was saved is what was trained.

    Raises:
        TrainingFailed: it is not.
    """
    before = [leaf.clone() for leaf in leaves(training.step.state_dict())]
    training.saving.load()
    after = list(leaves(training.step.state_dict()))
    if not all(torch.equal(first, second) for first, second in zip(before, after, strict=True)):
        raise TrainingFailed(
            "fast dev run: the checkpoint that was loaded back is not the state that was saved."
        )


def overfit_verdict(result: RunResult, folder: RunFolder) -> RunResult:
    """Say whether the model learned its few batches by heart; a run that was stopped stays one."""
    if result.status != "finished":
        return result
    losses = [event["metrics"]["loss"] for event in read_events(folder.events) if event["event"] == "update"]
    few = max(1, len(losses) // OVERFIT_PASSES)
    first, last = sum(losses[:few]) / few, sum(losses[-few:]) / few
    accuracy = result.last["metrics"].get("accuracy", 0.0)
    memorised = accuracy >= MEMORISED_ACCURACY or last < MEMORISED_LOSS * first
    moved = (
        f"the training loss of {few} {'batch' if few == 1 else 'batches'} went from {first:.4g} to {last:.4g}"
    )
    if accuracy:
        moved += f", accuracy {accuracy:.4g}"
    verdict = (
        f"it can memorise: {moved}"
        if memorised
        else f"it did not memorise in {OVERFIT_PASSES} passes: {moved}. Look at the learning rate, the labels, and whether the parameters that "
        "matter train"
    )
    status = "finished" if memorised else "failed"
    return dataclasses.replace(result, status=status, stop_reason=f"overfit: {verdict}")
