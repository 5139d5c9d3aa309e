"""Runs of recipes: train, and go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from snugfit.core.job import Job, Plan
from snugfit.core.technique import Stage
from snugfit.deliver.model_registry import register_best
from snugfit.errors import SettingError, short_path
from snugfit.models.adapter_bundle import Base
from snugfit.models.bundle import LEARNED_BY, LOSS_WEIGHTS, META, OWN_LOSS
from snugfit.models.folders import CONFIG_PREFIX
from snugfit.planner.answers.answer import Answer
from snugfit.recipe.jobs import job_of, metrics_of, numerics_of, plan_of
from snugfit.recipe.plan_choices import with_precision_here
from snugfit.results.run_folder import RECIPE, RunFolder
from snugfit.run.call_options import RunOptions
from snugfit.run.description import python_inputs
from snugfit.run.events import Display
from snugfit.run.identity.identity import task_identity
from snugfit.run.load_ahead import Load, LoadAhead
from snugfit.run.newest import recipe_file
from snugfit.run.observers.sample_answers import require_whole_model, sample_answers
from snugfit.run.observers.weight_histograms import weight_histograms
from snugfit.run.observers.worst_pictures import worst_pictures
from snugfit.run.plans.plan_cache import PLANNED
from snugfit.run.plans.planning import figures_to_compare, is_tight
from snugfit.run.plans.recipe_plan import PLAN, planned, write_beginning
from snugfit.run.run import execute, joined_ranks
from snugfit.run.smoke import as_smoke
from snugfit.run.spec import RunSpec, TimeLimit
from snugfit.run.trackers import Tracking
from snugfit.run.training.assemble import check_settings
from snugfit.run.training.loop import Training
from snugfit.run.training.result import RunResult
from snugfit.run.training.stop_requests import StopRequest
from snugfit.strategies.base import Strategy
from snugfit.strategies.process_group import agreed
from snugfit.strategies.registry import check_processes
from snugfit.system.plugins import Importer
from snugfit.system.processes import this_world
from snugfit.system.user_objects import is_python_path
from snugfit.tasks import find, registered
from snugfit.tasks.prepare import prepare, prepare_sides
from snugfit.tasks.task import ModelObserver, Task
from snugfit.tracking.cursor import stored_uri
from snugfit.tracking.named import NAMED, trackers
from snugfit.tracking.uri import check_uri, resolve_uri
from snugfit.units import parse_seconds

if TYPE_CHECKING:
    from snugfit.recipe import Recipe


def _left_out(recipe: Recipe) -> list[str]:
    """Return what to say of a model that a run has trained and that this one begins without."""
    if not recipe.from_scratch or not (Path(recipe.model) / META).is_file():
        return []
    model = short_path(recipe.model)
    return [
        f"from_scratch: true leaves out the weights in {model}. Remove it from the recipe to train on from them."
    ]


def train_recipe(
    recipe: Recipe, options: RunOptions | None = None, display: Display | None = None
) -> RunResult:
    """Train what a recipe says.

    Raises:
        UserError: the recipe, its data or its model cannot be used; no run's folder is left behind.
        TrainingFailed: the run failed on its own account.
    """
    options = options or RunOptions()
    if options.into is not None and RunFolder(options.into).has_checkpoints:
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
    """Return the recipe of a run, with settings over it.

    Raises:
        CodeRefused: it names code, and is neither under the current directory nor allowed to.
        RunFolderError: not a run's folder, or one of a run that was made in Python.
    """
    from snugfit.recipe import load_recipe

    return load_recipe(recipe_file(Path(run)), changes, allow_code=allow_code)


def _run_recipe(
    recipe: Recipe, options: RunOptions, display: Display | None, folder: RunFolder | None
) -> RunResult:
    plan, timeout = plan_of(recipe), parse_seconds(recipe.plan.timeout, "plan.timeout")
    with joined_ranks(plan, timeout):
        with agreed():
            tracking = _tracking(recipe, options, folder)
            spec = recipe_spec(recipe, options, folder, plan)
        return execute(replace(spec, tracking=tracking, display=display, timeout_seconds=timeout))


def recipe_spec(
    recipe: Recipe,
    options: RunOptions | None = None,
    folder: RunFolder | None = None,
    plan: Plan | None = None,
) -> RunSpec:
    """Return the run that a recipe asks for, planned where the options say so; neither data nor model are read.

    Args:
        folder: of the run that goes on; None for a new one.
        plan: the recipe's own, where it was made before.
    Raises:
        UserError: a setting is impossible.
        OutOfMemory: nothing that a plan may choose fits.
    """
    options, resume = options or RunOptions(), folder is not None
    job, plan = job_of(recipe), plan or plan_of(recipe)
    metrics = metrics_of(recipe)
    validated = recipe.data.validation is not None
    check_settings(job, plan, recipe.all_techniques(), metrics, validated=validated)
    same = {"recipe": recipe.hash(), "plan.micro_batch": plan.micro_batch, "plan.strategy": plan.strategy}
    if folder is None and options.into is not None:
        folder = RunFolder(options.into)
    by_plan = _planned(recipe, options, folder, (job, plan))
    recipe, answer, plan_record = by_plan.recipe, by_plan.answer, by_plan.record
    warnings = (*by_plan.warnings, *_left_out(recipe))
    recipe, notes = with_precision_here(recipe)
    plan = replace(plan, micro_batch=recipe.plan.micro_batch, numerics=numerics_of(recipe))
    begun, limit = folder is not None, options.time_seconds
    load: Load = partial(_load, recipe, options)
    if by_plan.ahead is not None:
        load = by_plan.ahead.instead_of(load, recipe)

    def of(recipe: Recipe) -> dict[str, Any]:
        def begin(new: RunFolder) -> None:
            if begun:  # by whoever started us, with the plan
                new.write_text(RECIPE, recipe.to_yaml())
            else:
                write_beginning(new, recipe, plan, answer)

        identity = {"recipe": recipe.learned(), **task_identity(recipe.task)}
        return {"identity": identity, "recipe": recipe.as_dict(), "begin": begin}

    def of_updates(updates: int) -> dict[str, Any]:
        shorter = replace(recipe, train=replace(recipe.train, epochs=None, updates=updates))
        return {"job": job.for_updates(updates), **of(shorter)}

    spec = RunSpec(
        name=recipe.name,
        job=job,
        plan=plan,
        techniques=recipe.all_techniques(),
        load=load,
        metrics=metrics,
        same=same,
        **of(recipe),
        inputs=partial(_inputs, recipe),
        output=Path(recipe.output),
        folder=folder,
        resume=resume,
        accept_changes=options.accept_changes,
        parent=options.parent,
        notes=[f"{PLANNED} {answer.about[PLANNED]}"] if answer and PLANNED in answer.about else (),
        warnings=(*warnings, *notes),
        # what goes on may do so elsewhere
        predicted=None if resume else figures_to_compare(plan_record, plan.device),
        tight=options.tight or is_tight(plan_record),
        details=not options.is_smoke,
        time=None if limit is None else TimeLimit(limit, options.started),
        of_updates=of_updates,
        stop=StopRequest(options.ends_after_seconds, options.started, options.stop),
    )
    return as_smoke(spec, options.overfit_batches) if options.is_smoke else spec


class _Planned(NamedTuple):
    """A recipe as its plan would run it.

    Args:
        answer, record: the plan, where one was made here, and as plain values; empty of a recipe that runs as it says.
        warnings: what is told of it.
        ahead: what reads the data meanwhile.
    """

    recipe: Recipe
    answer: Answer | None = None
    record: Mapping[str, Any] = {}
    warnings: Sequence[str] = ()
    ahead: LoadAhead | None = None


def _planned(
    recipe: Recipe, options: RunOptions, folder: RunFolder | None, made: tuple[Job, Plan]
) -> _Planned:
    """Plan a recipe where the options say so and nobody else has: not of a run that goes on, that is small, or that is one of several processes.

    Args:
        folder: of a run that goes on, or that whoever started this process has planned.
        made: the recipe's job and plan.
    """
    if folder is not None:
        return _Planned(recipe, record=folder.read_json(PLAN))
    if options.is_smoke or this_world().size > 1:
        return _Planned(recipe)
    plan = made[1]
    if options.plan:
        RunFolder.check_output(Path(recipe.output))
        check_processes(plan, this_world())  # before a search that may take long
    unplanned = with_precision_here(recipe)[0]
    ahead = LoadAhead(unplanned, partial(_load, unplanned, options), on_cpu=plan.device == "cpu")
    recipe, answer, warnings = planned(recipe, options, made, ahead.begin)
    return _Planned(recipe, answer, {} if answer is None else answer.as_dict(), warnings, ahead)


def _load(recipe: Recipe, options: RunOptions, strategy: Strategy) -> Task:
    if options.sides is not None:
        return prepare_sides(recipe, options.sides)
    parts = strategy.shards and not any(each.reads_weights for each in recipe.all_techniques())
    task = prepare(recipe, keep=strategy.part if parts else None)
    if is_python_path(recipe.loss) and OWN_LOSS not in task.meta:
        weights = recipe.loss_weights and dict(recipe.loss_weights)
        task = replace(task, meta={**task.meta, LEARNED_BY: recipe.loss, LOSS_WEIGHTS: weights})
    return task if options.is_smoke else replace(task, observers=_observers(recipe, task))


def _observers(recipe: Recipe, task: Task) -> tuple[ModelObserver, ...]:
    """Return what looks at the model at each evaluation.

    Raises:
        SettingError: it cannot, at models of this task or where the weights are not on one device.
    """
    track, observers = recipe.track, list[ModelObserver]()
    if track.answers is not None:
        observers.append(sample_answers(recipe, task, track.answers))
    if track.pictures is not None:
        observers.append(worst_pictures(recipe, task, track.pictures))
    if track.histograms:
        require_whole_model("track.histograms", recipe.all_techniques(), recipe.plan.strategy)
        observers.append(weight_histograms)
    return tuple(observers)


def _tracking(recipe: Recipe, options: RunOptions, folder: RunFolder | None) -> Tracking | None:
    """Return where the run is tracked, which is checked before anything is searched or read."""
    track = recipe.track
    if track.register and recipe.task not in registered():
        raise SettingError(
            "track.register",
            f"only {' and '.join(registered())} models can be registered, the task is {recipe.task}",
            "Remove it; the best model is in the run's folder.",
        )
    base = _base_of(recipe)
    names = [*(name for name in NAMED if getattr(track, name)), *track.others]
    if not (track.mlflow or names):
        return None
    importer = Importer("the recipe", recipe.folder)  # consented to when the recipe was read
    others = trackers(names, "track.others", importer)
    if options.is_smoke or not this_world().leads:
        return None
    for each in others:
        each.require()
    if not track.mlflow:
        return Tracking(None, track.experiment, others)
    stored = None if folder is None else stored_uri(folder.path)
    uri = resolve_uri(track.uri, recipe.output, stored=stored)
    check_uri(uri, experiment=track.experiment, model=track.register)
    register = partial(_register, track.register, base) if track.register else None
    return Tracking(uri, track.experiment, others, register)


def _inputs(recipe: Recipe, task: Task, training: Training) -> list[dict[str, Any]]:
    """Return the sources that rows are read from, each with the digest of its content; of data sets made in Python that of some rows."""
    if find(recipe.task).own_code:
        names = {"train": recipe.data.sources[0], "validation": recipe.data.sources[-1]}
        return python_inputs(training, {context: (name, None) for context, name in names.items()})
    return [
        {
            "context": "train" if number < len(recipe.data.train_sources) else "validation",
            "source": source,
            "sha256": task.fingerprints[source],
        }
        for number, source in enumerate(recipe.data.sources)
        if source in task.fingerprints
    ]


def _base_of(recipe: Recipe) -> Base | None:
    """Return the base of the adapter, where that alone is registered; None where the whole model is.

    Raises:
        SettingError: nothing is registered, or nothing would be left to merge the adapter into.
    """
    if not recipe.track.register_adapter:
        return None
    problem, remedy = "", "Set track.register_adapter: false."
    if not recipe.track.register:
        problem, remedy = "track.register names nothing", "Set track.register to a name."
    elif recipe.from_scratch or recipe.model.startswith(CONFIG_PREFIX):
        problem = f"the base is {recipe.model} with weights drawn anew, which are in no file"
    elif not any(Stage.ADAPT in each.card.stages for each in recipe.techniques):
        problem, remedy = "the recipe has no adapter", "Add lora, or set track.register_adapter: false."
    if problem:
        raise SettingError(
            "track.register_adapter", f"registers an adapter without its base, and {problem}", remedy
        )
    entries = zip(recipe.techniques, recipe.as_dict()["techniques"], strict=True)
    return Base(recipe.model, tuple(entry for each, entry in entries if Stage.QUANTISE in each.card.stages))


def _register(
    name: str, base: Base | None, task: Task, folder: RunFolder, uri: str, run_id: str | None
) -> Mapping[str, Any]:
    from snugfit.deliver.predictor import load_predictor

    registered = register_best(
        folder.path,
        name=name,
        uri=uri,
        run_id=run_id,
        example_rows=task.example_rows,
        predict=lambda bundle, rows: load_predictor(bundle).predict_plain(rows),
        together=not find(task.meta["task"]).of_rows,
        base=base,
    )
    return {
        "name": registered.name,
        "version": registered.version,
        "alias": registered.alias,
        "uri": registered.uri,
        "compared": {"rows": registered.rows, "max_abs_difference": registered.max_abs_difference},
    }
