"""The best model, and when it is kept: the watch over a run's evaluations, the best of them in detail, and their models under the weights that were scored.

The best one lies in `best/`, owed where the disk did not take it; others, also those that a function of the user's chooses, in `models/`.
"""

from __future__ import annotations

import copy
import math
import os
import shutil
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from snugfit.core.composition import RAW
from snugfit.core.job import Job, StopWhen
from snugfit.deliver.observed_evaluation import Observed
from snugfit.deliver.shown_rows import ValidationShown, columns_again
from snugfit.errors import RunFolderError, SettingError
from snugfit.kit.mapped_tensors import making_in_files
from snugfit.kit.phases import phase
from snugfit.models.bundle import DETERMINISTIC, ENTRIES
from snugfit.results.evaluation_details import EvaluationDetails
from snugfit.results.run_folder import DETAILS
from snugfit.run.checkpoint import checkpoint_files
from snugfit.step.state import made_buffers
from snugfit.strategies.process_group import agreed
from snugfit.system.disk_files import disk_problem, is_full
from snugfit.system.user_objects import describe

if TYPE_CHECKING:
    from torch import nn

    from snugfit.results.run_folder import RunFolder
    from snugfit.run.events import Emit
    from snugfit.step.step import Step
    from snugfit.tasks.inference import Inference
    from snugfit.tasks.task import Task


_WORST = 24
"""Rows of the best evaluation that are kept, the worst first."""

Standing = tuple[int | None, dict[str, float], str]


@dataclass
class Watch:
    """The evaluations so far, the best of them, and the windows that failed; part of every checkpoint.

    Evaluations of a technique's averaged weights and of raw ones are not compared: when the weights change their kind, best
    and patience begin anew. `reference` is the value that the next improvement is measured from, `without_improvement`
    counts evaluations since. `owed` is the best evaluation whose weights the disk did not take, and why. `banned` are the windows (counted from 1) because of which the run went back, and why; `refused_in_a_row` counts
    windows that were not finite since the last that was.
    """

    best_update: int | None = None
    best_metrics: dict[str, float] = field(default_factory=dict)
    best_weights: str = RAW
    reference: float = math.nan
    without_improvement: int = 0
    history: list[dict[str, Any]] = field(default_factory=list)
    banned: dict[int, str] = field(default_factory=dict)
    refused_in_a_row: int = 0
    owed: dict[str, Any] | None = None

    @property
    def standing(self) -> Standing:
        """The evaluation whose weights are in `best/`: its update, metrics and kind of weights."""
        return self.best_update, self.best_metrics, self.best_weights

    def stand_by(self, standing: Standing) -> None:
        """Hold that evaluation for the best, after the last one was or was not written to `best/`."""
        self.best_update, self.best_metrics, self.best_weights = standing
        self.history[-1]["best"] = self.history[-1]["update"] == self.best_update

    def observe(
        self,
        update: int,
        metrics: Mapping[str, float],
        monitor: tuple[str, bool],
        *,
        epoch: float = 0.0,
        weights: str = RAW,
        counts: bool = True,
        min_delta: float = 0.0,
    ) -> bool:
        """Take in an evaluation; whether it is the best so far: of equal ones, that with the lower loss. NaN is never better.

        Args:
            weights: the name of those that were scored.
            counts: whether patience is lost where it brings no improvement; not before the average that is waited for.
            min_delta: an improvement is more than this better than the one before.
        """
        name, higher = monitor
        value = metrics[name]
        if weights != self.best_weights:
            self.best_update, self.best_metrics, self.best_weights = None, {}, weights
            self.reference = math.nan
        first = self.best_update is None  # something must be saved, whatever it says
        best = first or self._is_better(metrics, name, higher)
        if best:
            self.best_update, self.best_metrics = update, dict(metrics)
        if first or _gain(value, self.reference, higher) > min_delta:
            self.reference, self.without_improvement = value, 0
        elif counts:
            self.without_improvement += 1
        self.history.append(
            {"update": update, "epoch": epoch, "metrics": dict(metrics), "weights": weights, "best": best}
        )
        return best

    def _is_better(self, metrics: Mapping[str, float], name: str, higher: bool) -> bool:
        """Return whether an evaluation is better than the best; equal scores are parted by their losses.

        Scores of few rows are often equal, and the loss then tells weights apart that the score cannot.
        """
        value, before = metrics[name], self.best_metrics[name]
        if value != before:
            return _gain(value, before, higher) > 0
        return _loss(metrics) < _loss(self.best_metrics)

    def leaders(self, monitor: tuple[str, bool], count: int) -> set[int]:
        """Return the updates of the `count` best evaluations of the kind of weights that the last one scored; of equal ones those with the lower loss, then the earlier."""
        name, higher = monitor
        sign = -1 if higher else 1
        ranked = sorted(
            (
                math.isnan(value),
                0.0 if math.isnan(value) else sign * value,
                _loss(each["metrics"]),
                each["update"],
            )
            for each in self.history
            if each["weights"] == self.best_weights
            for value in (each["metrics"][name],)
        )
        return {update for *_, update in ranked[:count]}

    def exhausted(self, job: Job) -> str | None:
        """Return why the run should stop early, or None.

        Raises:
            SettingError: `stop_when` failed, or returned no text.
        """
        reason = None
        rule = job.early_stopping
        if rule is None:
            return None
        if rule.patience is not None and self.without_improvement >= rule.patience:
            more = f" by more than {rule.min_delta:g}" if rule.min_delta else ""
            reason = (
                f"{job.evaluate.best_metric} has not improved{more} for {self.without_improvement} evaluations; best at update "
                f"{self.best_update}"
            )
        elif callable(rule.stop_when) and self.history:
            reason = self._asked(rule.stop_when)
        return None if reason is None else f"early stopping: {reason}"

    def _asked(self, stop_when: StopWhen) -> str | None:
        try:
            reason = stop_when(copy.deepcopy(self.history))
        except Exception as error:
            raise SettingError(
                "early_stopping.stop_when", f"failed: {describe(error)}", "Correct the function."
            ) from error
        if reason is not None and (not isinstance(reason, str) or not reason.strip()):
            raise SettingError(
                "early_stopping.stop_when",
                f"returned {reason!r}",
                "Return the reason to stop as text, or None to go on.",
            )
        return reason

    def state_dict(self) -> dict[str, Any]:
        return asdict(self)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)


def _loss(metrics: Mapping[str, float]) -> float:
    """Return the loss of an evaluation, as one to compare: infinite where it is not a number or was not measured."""
    loss = metrics.get("loss", math.inf)
    return math.inf if math.isnan(loss) else loss


def _gain(value: float, before: float, higher: bool) -> float:
    """Return how much better the value is; infinitely, if only the one before is not a number."""
    if math.isnan(before) and not math.isnan(value):
        return math.inf
    return value - before if higher else before - value


class SaveBest(Protocol):
    """Puts a model and what describes it where the best one is; `trained` is the one it was exported from."""

    def __call__(
        self, model: nn.Module, description: Mapping[str, Any], /, *, trained: nn.Module
    ) -> None: ...


class WatchedTraining(Protocol):
    """A training, to what keeps its best models."""

    job: Job
    step: Step
    folder: RunFolder | None
    watch: Watch
    monitor: tuple[str, bool]
    save_best: SaveBest
    save_at: Callable[[Path], SaveBest] | None
    emit: Emit
    deterministic: bool


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


def save_best(training: WatchedTraining, metrics: Mapping[str, float]) -> bool:
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


def owed_now(training: WatchedTraining) -> str | None:
    """Return why the best model is not in `best/`, where its weights are those of this moment."""
    owed = training.watch.owed
    here = owed is not None and owed["window"] == training.step.progress.windows
    return owed["problem"] if owed is not None and here else None


def write_model(training: WatchedTraining, metrics: Mapping[str, float], save: SaveBest) -> str | None:
    """Write the model as it is delivered; all ranks call it. What went wrong with the disk, the same on all of them, or None."""
    step, problem = training.step, None
    seams, folder = step.seams, training.folder
    with phase("save"), seams.weights(step.model):
        try:
            trained = step.strategy.whole(step.model, Path(".") if folder is None else folder.path)
            if trained is not None:
                if folder is not None:
                    folder.check_there()
                delivered = trained
                if seams.export is not None:
                    with nullcontext() if folder is None else making_in_files(folder.path):
                        delivered = seams.export(trained)
                description = {
                    "update": step.progress.updates,
                    "metrics": metrics,
                    "weights": seams.weights_name,
                }
                if step.entries:
                    description[ENTRIES] = step.entries
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


def keep_models(training: WatchedTraining, metrics: Mapping[str, float], *, best: bool) -> None:
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


def _is_wanted(training: WatchedTraining) -> bool:
    """Return whether the user's function chooses the last evaluation. The first rank decides for all, as about the end of a run."""
    strategy = training.step.strategy
    with agreed():
        wanted = strategy.rank == 0 and _asked(training)
    of_first: bool = strategy.tell(wanted)[0]
    return of_first


def _asked(training: WatchedTraining) -> bool:
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


@dataclass(frozen=True)
class ValidationDetails:
    """The best evaluation of a run, as its folder keeps it.

    Args:
        use: of the model, as its task has it.
        meta: what the model is saved with.
        data: the rows to validate on.
    """

    folder: RunFolder
    use: Inference
    meta: Mapping[str, Any]
    data: Any
    tokenizer: Any = None

    @classmethod
    def of(cls, task: Task, folder: RunFolder) -> ValidationDetails | None:
        """Return what looks at the evaluations of a run; None where its task has no rows to look at."""
        from snugfit.tasks import known

        card, data = known(task.meta.get("task")), task.material.validation
        if data is None or card is None or card.own_code or card.inference is None:
            return None
        if card.reads_texts and task.tokenizer is None:
            return None
        return cls(folder, card.inference(task.meta, task.tokenizer), task.meta, data, task.tokenizer)

    def observed(self) -> Observed:
        """Return what looks at one evaluation."""
        return Observed(self.use, self.meta, most=_WORST)

    def keep(self, observed: Observed) -> None:
        """Write what was seen of the best evaluation so far.

        Raises:
            RunFolderError: it cannot be written.
        """
        shown = ValidationShown(self.data, of_pictures="image_column" in self.meta)
        self.folder.write_json(DETAILS, observed.details(shown).as_dict())

    def finish(self) -> None:
        """Add the columns of the worst rows to what was kept, if anything was.

        Raises:
            RunFolderError: it cannot be read or written.
        """
        if not (self.folder.path / DETAILS).exists():
            return
        details = EvaluationDetails.of(self.folder.read_json(DETAILS))
        cells = columns_again(self.data, [each.row for each in details.worst], self.tokenizer)
        worst = [replace(row, cells=own) for row, own in zip(details.worst, cells, strict=True)]
        self.folder.write_json(DETAILS, replace(details, worst=worst).as_dict())
