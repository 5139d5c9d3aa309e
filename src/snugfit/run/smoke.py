"""Smoke runs: every path in seconds, and whether the model can memorise."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch
from torch.utils.data import Subset

from snugfit.core.job import Job
from snugfit.core.tree import leaves
from snugfit.data.loader import Order
from snugfit.errors import TrainingFailed
from snugfit.results.run_folder import RunFolder
from snugfit.run.training.loop import Training
from snugfit.run.training.result import RunResult
from snugfit.tracking.spool import read_events

if TYPE_CHECKING:
    from snugfit.run.session import RunOptions
    from snugfit.tasks import Task

DEV_WINDOWS = 2
OVERFIT_PASSES = 150
MEMORISED_LOSS = 0.1
MEMORISED_ACCURACY = 0.99


def shorten(job: Job, task: Task, options: RunOptions) -> tuple[Job, Task]:
    """The job and its data, cut down to a smoke run."""
    material = task.material
    if options.overfit_batches is not None:
        count = min(options.overfit_batches * job.train.global_batch, len(material.train))
        order = Order(len(material.train), count, job.train.seed)  # the file's own order may be by label
        few = Subset(material.train, [index for _, index in order.window(0)])
        passes = job.windows_per_epoch(count) * OVERFIT_PASSES
        job = dataclasses.replace(_to_the_end(job, passes, passes), shuffle=False)
        return job, dataclasses.replace(
            task, material=dataclasses.replace(material, train=few, validation=few)
        )
    windows = min(DEV_WINDOWS, job.windows_per_epoch(len(material.train)))
    job = _to_the_end(job, windows, 1)
    validation = material.validation
    if validation is not None:
        validation = Subset(
            validation, range(min(job.evaluate.batch or job.train.global_batch, len(validation)))
        )
    return job, dataclasses.replace(task, material=dataclasses.replace(material, validation=validation))


def _to_the_end(job: Job, updates: int, every: int) -> Job:
    """Return the job with another length and another time of evaluation, which no rule stops before its end."""
    return dataclasses.replace(
        job.for_updates(updates),
        evaluate=dataclasses.replace(job.evaluate, every=every),
        early_stopping=None,
    )


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
