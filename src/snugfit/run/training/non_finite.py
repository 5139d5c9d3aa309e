"""The policies for a window that makes no update."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from snugfit.core.batch import Batch
from snugfit.core.job import Job
from snugfit.core.loss_scale import SMALLEST
from snugfit.core.technique import RollBack
from snugfit.data.loader import Loader
from snugfit.errors import RunFolderError, TrainingFailed
from snugfit.results.run_folder import RunFolder
from snugfit.run.events import Emit
from snugfit.run.training.best import Watch
from snugfit.run.training.culprit import find_culprit, keep_window
from snugfit.step.step import Step, StepResult


@dataclass(frozen=True)
class Refusal:
    """A window that ends the run or, with `roll_back`, sends it back to its newest checkpoint."""

    reason: str
    roll_back: bool


class JudgedTraining(Protocol):
    """A training, to the policies for a window that makes no update."""

    job: Job
    step: Step
    loader: Loader
    folder: RunFolder | None
    watch: Watch
    emit: Emit


def judge(
    training: JudgedTraining, result: StepResult, window: Batch, can_go_back: Callable[[], bool]
) -> Refusal | None:
    """Say why the window made no update, and what the policy wants done about it; None to go on.

    Args:
        can_go_back: whether there is a checkpoint to go back to; all ranks call it.
    Raises:
        TrainingFailed: weights have moved all the same, and the run cannot go back.
    """
    job, watch = training.job, training.watch
    number = training.step.progress.windows
    harmless = _harmless(result)
    if harmless is not None:
        training.emit("skipped", window=number, reason=harmless)
        return None
    watch.refused_in_a_row += 1
    reason = _reason(training, result, window)
    training.emit("skipped", window=number, reason=reason)
    # a technique that refuses a finite update says itself what is to be done
    policy = job.non_finite.policy if result.refusal is None else "skip"
    damaged = False  # whether weights have moved all the same
    if isinstance(result.refusal, RollBack):
        policy, damaged = "roll_back", training.step.seams.irrevocable
    if policy == "stop" or watch.refused_in_a_row >= job.non_finite.limit:
        setting = "" if result.refusal is not None else f"non_finite.policy: {policy}, "
        ended = (
            f"window {number}: {reason}. {watch.refused_in_a_row} windows in a row made no update "
            f"({setting}non_finite.limit: {job.non_finite.limit}). Lower the learning rate, clip "
            "the gradient or mend the data."
        )
        if damaged:
            raise TrainingFailed(ended)  # at once, before these weights are saved
        return Refusal(ended, roll_back=False)
    if policy == "roll_back" and can_go_back():
        return Refusal(reason, roll_back=True)
    if damaged:
        raise TrainingFailed(
            f"window {number}: {reason}, and there is no checkpoint to go back to. Lower the learning rate, mend the data, or save "
            "checkpoints more often."
        )
    return None


def _harmless(result: StepResult) -> str | None:
    """Return why a window without an update is no failure: it is empty, or the loss scale has been too high for it."""
    if result.weight <= 0:
        return "nothing in it counts: all labels are ignored"
    if (
        result.refusal is None
        and result.scale is not None
        and result.scale > SMALLEST
        and math.isfinite(result.loss)
    ):
        return f"loss {result.loss:.4g}: its gradient overflows at the loss scale {result.scale:g}, which was lowered"
    return None


def _reason(training: JudgedTraining, result: StepResult, window: Batch) -> str:
    if result.refusal is None:
        culprit = find_culprit(training.step, window, training.loader.origins)
        reason = f"loss {result.loss:.4g}: not finite, first in {culprit}"
    else:
        reason = f"loss {result.loss:.4g}: {result.refusal}"
    if training.folder is None:
        return reason
    folder, number = training.folder.path / "culprits", training.step.progress.windows
    try:
        path = keep_window(folder, number, window, training.step.strategy, training.loader.origins)
    except RunFolderError as error:  # on all ranks; what ends or goes on is decided by the numbers
        return f"{reason}; {error}"
    return f"{reason}; the batch is in {path}" if path else reason
