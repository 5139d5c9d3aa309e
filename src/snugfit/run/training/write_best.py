"""The best model of a run: written to `best/` under the weights that were scored, and owed where the disk did not take it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snugfit.errors import RunFolderError
from snugfit.kit.mapped_tensors import making_in_files
from snugfit.kit.phases import phase
from snugfit.models.bundle import DETERMINISTIC
from snugfit.run.checkpoint import checkpoint_files
from snugfit.step.state import made_buffers
from snugfit.system.disk_files import is_full

if TYPE_CHECKING:
    from torch import nn

    from snugfit.run.training.loop import Training
    from snugfit.run.training.result import SaveBest


class BestInMemory:
    """The best model so far in host memory, where a run writes nothing."""

    def __init__(self) -> None:
        self.model: nn.Module | None = None
        self.description: Mapping[str, Any] = {}

    def __call__(self, model: nn.Module, description: Mapping[str, Any], /, *, trained: nn.Module) -> None:
        """Take a copy of the model as it is delivered, in place of the one before."""
        self.model = None  # before the next one needs room
        # what was made for this is nobody else's
        delivered = copy.deepcopy(model) if model is trained else model
        self.model, self.description = delivered.cpu().eval(), dict(description)


def save_best(training: Training, metrics: Mapping[str, float]) -> bool:
    """Write the model as it is delivered; all ranks call it.

    Where the disk does not take it, the run says so and goes on: what is in `best/` stays the best, the watch keeps as `owed` what should
    be there, and the next evaluation that is better than `best/` tries again.

    Returns:
        Whether it was written.
    """
    strategy, folder, watch = training.step.strategy, training.folder, training.watch
    problem = write_model(training, metrics, training.save_best)
    if problem is not None and is_full(problem):
        room = (
            strategy.rank == 0
            and folder is not None
            and checkpoint_files.make_room(folder.checkpoints, training.job.checkpoint.keep)
        )
        if strategy.tell(room)[0]:
            problem = write_model(training, metrics, training.save_best)
    watch.owed = None
    if problem is not None:
        progress, weights = training.step.progress, training.step.seams.weights_name
        watch.owed = {
            "update": progress.updates,
            "window": progress.windows,
            "metrics": dict(metrics),
            "weights": weights,
            "problem": problem,
        }
        message = f"{problem} The training goes on, and tries again at the next evaluation that is better than what is in best/."
        training.emit("warning", message=message)
    return problem is None


def owed_now(training: Training) -> str | None:
    """Return why the best model is not in `best/`, where its weights are those of this moment."""
    owed = training.watch.owed
    here = owed is not None and owed["window"] == training.step.progress.windows
    return owed["problem"] if owed is not None and here else None


def write_model(training: Training, metrics: Mapping[str, float], save: SaveBest) -> str | None:
    """Write the model as it is delivered; all ranks call it. What went wrong with the disk, the same on all of them, or None."""
    step, problem = training.step, None
    seams, folder = step.seams, training.folder
    with phase("save"), seams.weights(step.model):
        try:
            trained = step.strategy.whole(step.model, Path(".") if folder is None else folder.path)
            if trained is not None:
                if folder is not None:
                    folder.check_there()
                with nullcontext() if folder is None else making_in_files(folder.path):
                    delivered = trained if seams.export is None else seams.export(trained)
                description = {
                    "update": step.progress.updates,
                    "metrics": metrics,
                    "weights": seams.weights_name,
                }
                if training.deterministic:
                    description[DETERMINISTIC] = step.device.type
                if made := made_buffers(step):
                    description["made_buffers"] = made
                if seams.extended_by:
                    description["extended_by"] = seams.extended_by
                save(delivered, description, trained=trained)
        except RunFolderError as error:
            problem = str(error)
    of_first: str | None = step.strategy.tell(problem)[0]
    return of_first
