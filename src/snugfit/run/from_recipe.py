"""Runs of recipes: train, resume, evaluate, predict."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snugfit.core.job import Job, Plan
from snugfit.core.schedule import Schedule
from snugfit.core.technique import Technique
from snugfit.data.sources import check_fingerprints
from snugfit.deliver.registry import register_best, resolve_model
from snugfit.errors import RunFolderError, SettingError
from snugfit.planner.answers.answer import Answer
from snugfit.recipe.jobs import job_of, plan_of
from snugfit.recipe.plan_choices import with_precision_here
from snugfit.results.run_folder import RunFolder
from snugfit.run.checkpoint import checkpoint
from snugfit.run.events import AGAIN, Display, Events, Silent, goes_on, opened
from snugfit.run.plan_cache import PLANNED
from snugfit.run.planning import expected, is_tight
from snugfit.run.plans import PLAN, RECIPE, planned, write_beginning
from snugfit.run.session import (
    RunOptions,
    Tracking,
    describe_run,
    follow,
    python_inputs,
    run_session,
    versions,
)
from snugfit.run.smoke import overfit_verdict, shorten, verify_reload
from snugfit.run.training.loop import Training
from snugfit.run.training.result import RunResult
from snugfit.step.build import assemble, check_settings
from snugfit.step.metrics import RowMetric
from snugfit.strategies.base import Strategy
from snugfit.strategies.registry import shared_folder, strategy_of
from snugfit.strategies.world import agreed, answered, check_same, joined
from snugfit.system.mkl_mode import fix_sums
from snugfit.system.processes import started_anew, this_world
from snugfit.tasks import Task, prepare, prepare_sides
from snugfit.tracking.cursor import stored_uri
from snugfit.tracking.uri import check_uri, resolve_uri
from snugfit.units import parse_seconds

if TYPE_CHECKING:
    from snugfit.recipe import Recipe

CLASSIFICATION = "text-classification"
_DATA = "data.json"


def train_recipe(
    recipe: Recipe, options: RunOptions | None = None, display: Display | None = None
) -> RunResult:
    """Train what a recipe says.

    Raises:
        UserError: the recipe, its data or its model cannot be used; no run's folder is left behind.
        TrainingFailed: the run failed on its own account.
    """
    options = options or RunOptions()
    if options.into is not None and checkpoint.any_in(RunFolder(options.into).checkpoints):
        return _run_recipe(recipe, options, display, RunFolder.open(options.into))
    return _run_recipe(recipe, options, display, None)


def resume_run(
    run: str | Path,
    options: RunOptions | None = None,
    display: Display | None = None,
    changes: Sequence[str] = (),
    *,
    allow_code: bool = False,
) -> RunResult:
    """Go on with a stopped or killed run from its newest valid checkpoint.

    Args:
        changes: settings over the recipe's that leave the updates as they are, such as plan.devices=2.
        allow_code: consent to run what the run's recipe names; a run under the current directory needs none.
    Raises:
        UserError: not a run's folder, nothing to go on from, or the data changed.
        TrainingFailed: the run failed on its own account.
    """
    recipe = recipe_of(run, changes, allow_code=allow_code)
    return _run_recipe(recipe, options or RunOptions(), display, RunFolder.open(Path(run)))


def recipe_of(run: str | Path, changes: Sequence[str] = (), *, allow_code: bool = False) -> Recipe:
    """The recipe of a run, with settings over it.

    Raises:
        CodeRefused: it names code, and is neither under the current directory nor allowed to.
        RunFolderError: not a run's folder, or one of a run that was made in Python.
    """
    from snugfit.recipe import load_recipe

    folder = RunFolder.open(Path(run))
    if not (folder.path / RECIPE).exists():
        raise RunFolderError(
            f"{run}: has no {RECIPE}. Runs made in Python go on with snugfit.train(…, resume=…)."
        )
    return load_recipe(folder.path / RECIPE, changes, allow_code=allow_code)


def evaluate_run(
    source: str,
    data: str,
    *,
    metrics: Sequence[str] = (),
    bad_rows: str = "fail",
    uri: str | None = None,
    allow_code: bool = False,
) -> dict[str, Any]:
    """Loss and metrics of a run's best model, or of a registered one, on labelled rows."""
    from snugfit.deliver.predict import evaluate_file

    return evaluate_file(
        resolve_model(source, uri=uri),
        data,
        metrics or ("accuracy", "macro_f1"),
        bad_rows=bad_rows,
        allow_code=allow_code,
    )


def predict_rows(
    source: str,
    data: str,
    output: str | Path,
    *,
    bad_rows: str = "fail",
    uri: str | None = None,
    allow_code: bool = False,
) -> dict[str, Any]:
    """Write `data` with predictions of a run's best model, or of a registered one."""
    from snugfit.deliver.predict import predict_file

    folder = resolve_model(source, uri=uri)
    return predict_file(folder, data, Path(output), bad_rows=bad_rows, allow_code=allow_code)


def _run_recipe(
    recipe: Recipe, options: RunOptions, display: Display | None, folder: RunFolder | None
) -> RunResult:
    world, plan = this_world(), plan_of(recipe)
    with joined(world, plan.device, parse_seconds(recipe.plan.timeout, "plan.timeout")), answered(_outside):
        if world.size > 1:
            shared = {"plan.micro_batch": plan.micro_batch, "plan.strategy": plan.strategy}
            check_same({"recipe": recipe.hash(), "versions": versions(), **shared})
        with agreed():
            strategy = strategy_of(plan, world)
        return _run_on_rank(recipe, options, display, folder, strategy)


def _outside() -> str:
    return "before or after all updates"


@dataclass(frozen=True)
class _Prepared:
    """What a run needs that can be refused before its folder is made. `told`: what is to be said of the plan."""

    recipe: Recipe
    options: RunOptions
    job: Job
    plan: Plan
    techniques: Sequence[Technique]
    metrics: dict[str, str | RowMetric]
    task: Task
    uri: str | None
    answer: Answer | None
    told: list[str]
    predicted: Mapping[str, Any] | None


def _prepare(recipe: Recipe, options: RunOptions, folder: RunFolder | None, strategy: Strategy) -> _Prepared:
    """Check, plan and read what a recipe says; `folder` is that of a run that goes on."""
    smoke = options.fast_dev_run or options.overfit_batches is not None
    job = job_of(recipe)
    metrics: dict[str, str | RowMetric] = {metric: metric for metric in job.evaluate.metrics}
    validated = recipe.data.validation is not None
    asked = plan_of(recipe)
    check_settings(job, asked, recipe.all_techniques(), metrics, validated=validated)
    if asked.device == "cpu":
        fix_sums()  # before code of the recipe's own asks MKL for anything, such as the cosines of a data set
    uri = _tracked_at(recipe, folder) if recipe.track.mlflow and not smoke and strategy.rank == 0 else None
    if recipe.track.register and recipe.task != CLASSIFICATION:
        raise SettingError(
            f"track.register: only {CLASSIFICATION} models can be registered, the task is {recipe.task}. Remove it; "
            "the best model is in the run's folder."
        )
    answer: Answer | None = None
    told: list[str] = []
    kept: Mapping[str, Any] = {}
    begun = (
        folder if options.into is None else RunFolder(options.into)
    )  # where whoever started us has planned
    if begun is not None:
        kept = begun.read_json(PLAN)
    elif not smoke and strategy.world_size == 1:
        recipe, answer, told = planned(recipe, options)
        kept = {} if answer is None else answer.as_dict()
    recipe, said = with_precision_here(recipe)
    told = [*told, *said]
    # weights that come and go would leave more behind in the C library than what spreading them saves
    options = dataclasses.replace(options, tight=is_tight(kept) or strategy.shards)
    techniques: Sequence[Technique] = recipe.all_techniques()
    keep = strategy.part if strategy.shards and not any(each.reads_weights for each in techniques) else None
    task = prepare(recipe, keep=keep) if options.sides is None else prepare_sides(recipe, options.sides)
    if smoke:
        job, task = shorten(job, task, options)
        if options.overfit_batches is not None:
            # a rate that falls would end the learning before the memorising
            techniques = [each for each in techniques if not _lowers_rate(each)]
    plan = plan_of(recipe)
    # what goes on may do so elsewhere
    predicted = expected(kept, plan.device) if folder is None else None
    return _Prepared(recipe, options, job, plan, techniques, metrics, task, uri, answer, told, predicted)


def _tracked_at(recipe: Recipe, folder: RunFolder | None) -> str:
    """The tracker's address, which is one that can be used."""
    stored = None if folder is None else stored_uri(folder.path)
    uri = resolve_uri(recipe.track.uri, recipe.output, stored=stored)
    check_uri(uri, experiment=recipe.track.experiment, model=recipe.track.register)
    return uri


def _run_on_rank(
    recipe: Recipe,
    options: RunOptions,
    display: Display | None,
    folder: RunFolder | None,
    strategy: Strategy,
) -> RunResult:
    resume = folder is not None and goes_on(folder, strategy)
    with agreed():
        run = _prepare(recipe, options, folder, strategy)
    data, material = dict(run.task.fingerprints), run.task.material
    if strategy.world_size > 1:
        rows = {"data.train": material.train, "data.validation": material.validation or ()}
        check_same({"data": data, **{f"{name} (rows)": len(each) for name, each in rows.items()}})
    if folder is None:
        folder = _new_folder(run, strategy)
    elif "data" not in options.accept_changes and (resume or (folder.path / _DATA).exists()):
        check_fingerprints(folder.read_json(_DATA), data)
    if strategy.rank == 0:
        folder.write_json(_DATA, data)
    with opened(folder, display) if strategy.rank == 0 else nullcontext(Silent()) as events:
        training = assemble(
            run.job,
            run.plan,
            material,
            None,
            run.techniques,
            run.metrics,
            folder=folder,
            emit=events,
            save_best=run.task.save_best,
            # a smoke run has other updates
            identity={
                "recipe": run.recipe.learned(),
                "updates": run.job.total_windows(len(material.train)),
                **run.task.sources,
            },
            files=data,
            accept_changes=options.accept_changes,
            strategy=strategy,
        )

        def conclude(result: RunResult) -> RunResult:
            if options.fast_dev_run:
                verify_reload(training)
            if options.overfit_batches is None or strategy.rank > 0:
                return result
            return overfit_verdict(result, folder)

        if strategy.rank > 0:
            _expect(run, training)
            return follow(training, run.options, resume, conclude)
        return _tell(run, training, events, resume, conclude)


def _tell(
    run: _Prepared,
    training: Training,
    events: Events,
    resume: bool,
    conclude: Callable[[RunResult], RunResult],
) -> RunResult:
    """Train as the one that tells how it goes."""
    recipe, options, folder = run.recipe, run.options, training.folder
    if not resume and folder.events.stat().st_size > 0:  # processes ended before they had saved anything
        events("resume", update=0, window=0)
        events("warning", message=AGAIN)
    if message := started_anew():
        events("warning", message=message)
    if run.answer is not None and PLANNED in run.answer.about:
        events("note", text=f"{PLANNED} {run.answer.about[PLANNED]}")
    _expect(run, training)
    described: dict[str, Any] = {
        "recipe": recipe.as_dict(),
        "data": dict(run.task.data),
        "inputs": _inputs(recipe, run.task.fingerprints, training),
    }
    if options.parent is not None:
        described["parent"] = options.parent
    header = describe_run(recipe.name, folder, training, run.plan, described)
    tracking = None
    if run.uri is not None:
        register = _registration(recipe, run.task) if recipe.track.register else None
        tracking = Tracking(run.uri, recipe.track.experiment, register)
    return run_session(
        training,
        events,
        header,
        notes=(*run.told, *run.task.messages),
        tracking=tracking,
        options=options,
        resume=resume,
        conclude=conclude,
    )


def _inputs(recipe: Recipe, fingerprints: Mapping[str, str], training: Training) -> list[dict[str, Any]]:
    """Return the sources that rows are read from, each with the digest of its content; of data sets made in Python that of some rows."""
    sources = (("train", recipe.data.train), ("validation", recipe.data.validation))
    if recipe.task == "python":
        held_out = isinstance(recipe.data.validation, str)
        names = {
            "train": recipe.data.train,
            "validation": recipe.data.validation if held_out else recipe.data.train,
        }
        return python_inputs(training, {context: (str(name), None) for context, name in names.items()})
    return [
        {"context": context, "source": source, "sha256": fingerprints[source]}
        for context, source in sources
        if isinstance(source, str) and source in fingerprints
    ]


def _expect(run: _Prepared, training: Training) -> None:
    """Have what was predicted compared with what comes of it."""
    if run.predicted is not None:
        training.expect(run.predicted)


def _new_folder(run: _Prepared, strategy: Strategy) -> RunFolder:
    """The folder of a run that begins, the same on all ranks."""
    if run.options.into is not None:
        return RunFolder(run.options.into)  # whoever started the process has written it
    folder = shared_folder(strategy, Path(run.recipe.output), run.recipe.name)
    if strategy.rank == 0:
        write_beginning(folder, run.recipe, run.plan, run.answer)
    return folder


def _lowers_rate(technique: Technique) -> bool:
    """Whether it is a schedule that can be left out: no optimizer with one of its own, and not what sets the rate."""
    seams = technique.card.seams
    if "schedule" not in seams or "optimizer" in seams:
        return False
    return not (isinstance(technique, Schedule) and technique.sets_scale())


def _registration(recipe: Recipe, task: Task) -> Any:
    def register(folder: RunFolder, uri: str, run_id: str | None) -> Mapping[str, Any]:
        from snugfit.deliver.predict import load_predictor

        assert recipe.track.register is not None
        registered = register_best(
            folder.path,
            name=recipe.track.register,
            uri=uri,
            run_id=run_id,
            example_rows=task.example_rows,
            predict=lambda bundle, rows: load_predictor(bundle).predict(rows),
        )
        return {
            "name": registered.name,
            "version": registered.version,
            "alias": registered.alias,
            "uri": registered.uri,
            "compared": {"rows": registered.rows, "max_abs_difference": registered.max_abs_difference},
        }

    return register
