"""The models of the best evaluations, and of those that a function of the user's chooses: in `models/`, each a whole one of its own."""

from __future__ import annotations

import copy
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from snugfit.errors import RunFolderError, SettingError
from snugfit.run.training.write_best import write_model
from snugfit.strategies.agreement import agreed
from snugfit.system.disk_files import disk_problem
from snugfit.system.user_objects import describe

if TYPE_CHECKING:
    from snugfit.core.job import Job
    from snugfit.results.run_folder import RunFolder
    from snugfit.run.training.loop import Training


def check_models(job: Job, folder: RunFolder | None, *, validated: bool) -> None:
    """Refuse to keep several models where there is nothing to choose them by, or no place for them.

    Raises:
        SettingError: names the setting.
    """
    evaluate = job.evaluate
    if evaluate.keep_models == 1 and evaluate.keep_when is None:
        return
    name = "evaluate.keep_models" if evaluate.keep_models > 1 else "evaluate.keep_when"
    if not validated:
        raise SettingError(name, "needs data to be measured on", "Give data.validation.")
    if folder is None:
        raise SettingError(
            name, "puts models into the folder of the run, and output=None has none", "Give output."
        )


def keep_models(training: Training, metrics: Mapping[str, float], *, best: bool) -> None:
    """Keep the model of the last evaluation beside the best one where it is to be, and remove those that no longer are; all ranks call it.

    Which are to be kept is known from the evaluations so far, which are part of every checkpoint: a run that goes on keeps the same.
    Where the disk does not take one, the run says so and goes on without it.

    Args:
        best: whether that model has just been written to `best/`.
    Raises:
        SettingError: `keep_when` failed, or returned neither true nor false.
    """
    evaluate, watch, folder = training.job.evaluate, training.watch, training.folder
    if folder is None or training.save_at is None:
        return
    last = watch.history[-1]
    if evaluate.keep_when is not None:
        last["chosen"] = _is_wanted(training)
    count = evaluate.keep_models if evaluate.keep_models > 1 else 0
    updates = watch.leaders(training.monitor, count)
    updates |= {each["update"] for each in watch.history if each.get("chosen")}
    problem, place = None, folder.model_at(last["update"])
    if last["update"] in updates:
        if not best:
            problem = write_model(training, metrics, training.save_at(place))
        elif training.step.strategy.rank == 0:
            problem = _link(folder.best, place)
    if training.step.strategy.rank == 0:
        for model in folder.models.glob("*"):
            if model not in map(folder.model_at, updates):
                shutil.rmtree(model, ignore_errors=True)
    if problem is not None:
        training.emit("warning", message=f"{problem} The training goes on without that model.")


def _is_wanted(training: Training) -> bool:
    """Return whether the user's function chooses the last evaluation. The first rank decides for all, as about the end of a run."""
    strategy = training.step.strategy
    with agreed():
        wanted = strategy.rank == 0 and _asked(training)
    of_first: bool = strategy.tell(wanted)[0]
    return of_first


def _asked(training: Training) -> bool:
    keep_when = training.job.evaluate.keep_when
    assert callable(keep_when)
    try:
        answer = keep_when(copy.deepcopy(training.watch.history))
    except Exception as error:
        raise SettingError(
            "evaluate.keep_when", f"failed: {describe(error)}", "Correct the function."
        ) from error
    if not isinstance(answer, bool):
        raise SettingError(
            "evaluate.keep_when",
            f"returned {answer!r}",
            "Return True to keep the model of the last evaluation, else False.",
        )
    return answer


def _link(model: Path, place: Path) -> str | None:
    """Put a model in a further place, its files not a second time on the disk; what went wrong, or None."""
    new = place.with_name(f".{place.name}.new")
    try:
        shutil.rmtree(new, ignore_errors=True)
        place.parent.mkdir(exist_ok=True)
        shutil.copytree(model, new, copy_function=_linked)
        shutil.rmtree(place, ignore_errors=True)  # of a run that went back
        os.replace(new, place)
    except (OSError, shutil.Error, RunFolderError) as error:
        shutil.rmtree(new, ignore_errors=True)
        return f"the model cannot be written to {place}: {disk_problem(error) or error}."
    return None


def _linked(source: str, target: str) -> None:
    try:
        os.link(source, target)  # a bundle is replaced whole, never written into
    except OSError:  # a disk without links
        shutil.copy2(source, target)
