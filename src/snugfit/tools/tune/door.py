"""A search over the settings of a recipe: every trial is a run of its own, under one folder that can be gone on with.

    <output>/<name>/tools/tune/<id>/
        tune.json, study.db, events.jsonl, found.json, tune.html, best.yaml
        trial-<number>/     the trial's run

The study is the one truth about the trials; everything else is made from it anew after each of them.
"""

from __future__ import annotations

import hashlib
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from snugfit.data.files.file_kinds import files_in, is_shards
from snugfit.data.files.shards import shard_files
from snugfit.errors import SettingError, TrainingFailed
from snugfit.report.page import write_report
from snugfit.results.run_folder import RunFolder
from snugfit.run.call_options import RunOptions
from snugfit.run.checkpoint import checkpoint_files
from snugfit.run.training.result import RunResult
from snugfit.step.metrics.metric import monitored
from snugfit.system.digest import digest_of_file
from snugfit.system.processes import this_world
from snugfit.system.user_objects import is_python_path
from snugfit.tools.many_runs.engine import ManyRuns, Tell, Watch
from snugfit.tools.setup import output_of
from snugfit.tools.tune.page import render_tune_page
from snugfit.tools.tune.pruning import Pruning
from snugfit.tools.tune.result import Space, Trial, Tuned, shown, size
from snugfit.tools.tune.search_space import applied, check_space, read_space
from snugfit.tools.tune.study import Study, check_installed, check_pruner
from snugfit.tracking.spool import Spool

if TYPE_CHECKING:
    from snugfit.recipe import Recipe

BEST = "best.yaml"
TOOL = "tune"
_SEARCH = f"{TOOL}.json"


def tune(
    recipe: Recipe,
    search: Mapping[str, str | Sequence[Any]],
    *,
    trials: int = 20,
    pruner: str = "median",
    options: RunOptions | None = None,
    watch: Watch = lambda _: nullcontext(),
    tell: Tell = lambda _: None,
) -> Tuned:
    """Look for the values of settings with which a recipe is best by its `evaluate.best`; a search of the same is gone on with.

    Args:
        search: settings by their dotted names, each with its values: `"log:1e-5..1e-2"`, `"2..8"`, or a list.
        trials: how many to run, those of before counted in.
        pruner: stops trials that are behind the others: median, hyperband or none.
        options: of each trial's run; the time to stop is that of all of them.
    Returns:
        What was found; where it was stopped, `finished` is false and the same call goes on.
    Raises:
        UserError: the recipe or the search cannot be used; no folder is left behind where no trial has begun.
        TrainingFailed: all trials are done and none was finished.
    """
    check_installed()
    check_pruner(pruner)
    space = read_space(search)
    if trials < 1:
        raise SettingError("trials", f"{trials} is too few", "Give 1 or more.")
    if recipe.data.validation is None:
        raise SettingError(
            "data.validation", "is null, and a search needs rows to compare trials by", "Give some."
        )
    if recipe.plan.devices > 1 or this_world().size > 1:
        raise SettingError(
            "plan.devices", "a search runs its trials in one process, on one device", "Leave it at 1."
        )
    check_space(recipe, space)
    identity = _identity(recipe, space, pruner)
    begun = _begun(recipe, identity)
    if begun is None:
        folder = RunFolder.create(output_of(recipe) / recipe.name / "tools", TOOL)
        folder.write_json(_SEARCH, identity)
    else:
        folder = begun
        tell(f"goes on with {folder.path}")
        order = folder.read_json(_SEARCH)["search"]  # in which values are drawn
        space = {name: space[name] for name in order}
    count = min(trials, size(space) or trials)
    if count < trials:
        tell(f"there are {count} combinations, so as many trials")
    search_at_work = _Searching(recipe, folder, options or RunOptions(), watch, tell, space, pruner, count)
    return search_at_work.run(new=begun is None)


def _identity(recipe: Recipe, space: Space, pruner: str) -> dict[str, Any]:
    """Return what makes two searches one and the same."""
    data = {
        name: digests
        for name in recipe.data.sources
        if not is_python_path(name) and (digests := _digests(name, recipe.folder))
    }
    search = {name: each.written() for name, each in space.items()}
    return {"recipe": recipe.hash(), "data": data, "search": search, "pruner": pruner}


def _digests(source: str, folder: Path) -> str | dict[str, str]:
    """Return the sha256 of the file that a source is; of a folder and of shards digests of their files by name, empty where there is none."""
    path = Path(source)
    if path.is_file():
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    if path.is_dir():
        return {each.relative_to(path).as_posix(): digest_of_file(each) for each in files_in(path)}
    if is_shards(source, folder):
        return {str(shard): digest_of_file(shard) for shard in shard_files(source, "data", folder)}
    return {}


def _is_searched(setting: str, space: Space) -> bool:
    """Return whether an error is about a value of the trial: other values may do, with which the recipe is right."""
    name = setting.rpartition(": ")[2]  # behind the file and the line of the recipe
    return any(name == searched or name.startswith(f"{searched}.") for searched in space)


def _begun(recipe: Recipe, identity: Mapping[str, Any]) -> RunFolder | None:
    """Return the newest search of the same."""
    home = output_of(recipe) / recipe.name / "tools" / TOOL
    folders = [RunFolder(path.parent.resolve()) for path in sorted(home.glob(f"*/{_SEARCH}"), reverse=True)]
    return next((folder for folder in folders if folder.read_json(_SEARCH) == identity), None)


@dataclass
class _Searching(ManyRuns[Trial, Tuned]):
    """A search at work in its folder."""

    space: Space
    pruner: str
    count: int

    tool = TOOL

    def __post_init__(self) -> None:
        evaluate = self.recipe.evaluate
        self.metric, self.higher = monitored(evaluate.best, evaluate.metrics)

    @contextmanager
    def opened(self) -> Iterator[None]:
        self.tell("opening the trials of the search …")
        seed, higher = self.recipe.train.seed, self.higher
        study = Study(self.folder.path, self.space, seed=seed, higher=higher, pruner=self.pruner)
        with closing(study) as self.study, TemporaryDirectory(prefix="snugfit-plans-") as plans:
            self.options = replace(self.options, plans=Path(plans))
            yield

    def run(self, *, new: bool) -> Tuned:
        outcome = super().run(new=new)
        if outcome.finished and outcome.best is None:
            raise TrainingFailed(
                f"none of the {len(outcome.trials)} trials was finished; the last one: {outcome.trials[-1].reason} The search: "
                f"{self.folder.path}"
            )
        return outcome

    def described(self) -> dict[str, Any]:
        return {"search": {name: each.written() for name, each in self.space.items()}}

    def is_done(self) -> bool:
        return len(self.study.trials()) >= self.count

    def changes(self) -> Iterator[Trial]:
        while not self.is_done():
            yield self.study.next()

    def run_one(self, trial: Trial) -> str | None:
        reason = self._run(trial)
        ended = self.study.trials()
        if len(ended) == trial.number:
            self._say(ended[-1], self.keep())
        return reason

    def _run(self, trial: Trial) -> str | None:
        """Run a trial to its end, or go on with it; why it was stopped before, or None."""
        title = f"trial {trial.number} of {self.count}"
        values = ", ".join(f"{name}={shown(value)}" for name, value in trial.parameters.items())
        self.tell(f"{title}: {values}")
        if trial.reason is not None:  # told to stop, by a process that was killed before its run had
            begun = self.begun(trial.name)
            self.study.end(run_dir=None if begun is None else str(begun))
            return None
        pruning = Pruning(self.study, self.metric, self.recipe.evaluate.every)
        options = replace(self.options, stop=lambda: pruning.reason)
        try:
            ended = self.train(
                trial.name, title, lambda: applied(self.recipe, trial.parameters), options, pruning.before
            )
        except (TrainingFailed, SettingError) as error:
            if isinstance(error, SettingError) and not _is_searched(error.setting, self.space):
                raise
            self.study.end(reason=str(error), run_dir=pruning.run_dir)
            return None
        stopped = ended.stop_reason if ended.status == "stopped" else None
        if stopped is not None and pruning.reason is None:
            return stopped
        self.study.end(**self._value(ended), run_dir=ended.run_dir, seconds=ended.seconds)
        _forget(ended)
        return None if stopped == pruning.reason else stopped

    def _value(self, ended: RunResult) -> dict[str, Any]:
        """Return the trial's value, or the reason why it has none."""
        value = ended.best["metrics"][self.metric] if ended.best is not None else math.nan
        return (
            {"value": value} if math.isfinite(value) else {"reason": f"its {self.metric} was never a number"}
        )

    def _say(self, trial: Trial, outcome: Tuned) -> None:
        """Say how a trial ended, to people and to the tracker."""
        value = "" if trial.value is None else f", {self.metric} {trial.value:.4g}"
        self.tell(f"{trial.name} {trial.state}{value}{'' if trial.reason is None else f': {trial.reason}'}")
        best = outcome.best
        self.tracked.say(
            "trials",
            update=trial.number,
            trial={} if trial.value is None else {self.metric: trial.value},
            best={} if best is None else {self.metric: best.value},
        )

    def keep(self, reason: str | None = None) -> Tuned:
        trials = self.study.trials()
        about = self.about(max(self.count, len(trials)), reason)
        outcome = Tuned(self.metric, self.higher, self.space, trials, **about)
        if outcome.best is not None:
            best = applied(self.recipe, outcome.best.parameters)
            self.folder.write_text(BEST, best.to_yaml())
        return self.write(outcome, outcome.summary(), render_tune_page(outcome))


def _forget(ended: RunResult) -> None:
    """Remove a run's checkpoints, each of which is several times as large as the model, and of one that was pruned the model too."""
    assert ended.run_dir is not None  # a trial's
    run = RunFolder(Path(ended.run_dir))
    checkpoint_files.remove_all(run.checkpoints)
    if ended.resumable:  # it was, until now
        shutil.rmtree(run.best, ignore_errors=True)
        with Spool(run.events) as spool:
            spool.append("end", **{**ended.as_dict(), "resumable": False})
    write_report(run.path)
