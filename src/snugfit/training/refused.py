"""What becomes of a run when a window makes no update."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from snugfit.core.batch import Batch
from snugfit.training import checkpoint
from snugfit.training.culprit import find_culprit, keep_window
from snugfit.training.step import StepResult

if TYPE_CHECKING:
    from snugfit.training.loop import Training


@dataclass(frozen=True)
class Refused:
    """A window that ends the run or, with `roll_back`, sends it back to its newest checkpoint."""

    reason: str
    roll_back: bool


def judge(training: Training, result: StepResult, window: Batch) -> Refused | None:
    """Say why the window made no update, and what the policy wants done about it; None to go on."""
    job, watch, folder = training.job, training.watch, training.folder
    number = training.step.progress.windows
    if result.weight <= 0:
        training.emit("skipped", window=number, reason="nothing in it counts: all labels are ignored")
        return None
    watch.refused_in_a_row += 1
    culprit = find_culprit(training.step, window)
    kept = keep_window(folder.path / "culprits", number, window)
    reason = f"loss {result.loss:.4g}: not finite, first in {culprit}" + (
        f"; the batch is in {kept}" if kept else ""
    )
    training.emit("skipped", window=number, reason=reason)
    if job.non_finite == "stop" or watch.refused_in_a_row >= job.non_finite_limit:
        return Refused(
            f"window {number}: {reason}. {watch.refused_in_a_row} windows in a row made no update "
            f"(non_finite.policy: {job.non_finite}, non_finite.limit: {job.non_finite_limit}). Lower the learning rate, clip "
            "the gradient or mend the data.",
            roll_back=False,
        )
    if job.non_finite == "roll_back" and checkpoint.any_in(folder.checkpoints):
        return Refused(reason, roll_back=True)
    return None
