"""Runs of recipes: train, resume, evaluate, predict, and the plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snugfit import planning
from snugfit.core.entry import as_entry
from snugfit.core.job import Plan
from snugfit.core.processes import started_anew, this_world
from snugfit.core.schedule import Schedule
from snugfit.core.technique import Technique
from snugfit.data.sources import check_fingerprints
from snugfit.deliver.registry import register_best, resolve_model
from snugfit.errors import PlannerFailed, RunFolderError, SettingError, Untraceable
from snugfit.planner.answer import Answer
from snugfit.planner.plan import impossible
from snugfit.planner.target import Target
from snugfit.planning import expected, is_tight
from snugfit.recipe.jobs import job_of, plan_of
from snugfit.session import (
    Display,
    RunOptions,
    Silent,
    Tracking,
    describe_run,
    follow,
    opened,
    run_session,
    versions,
)
from snugfit.smoke import overfit_verdict, shorten, verify_reload
from snugfit.strategies.base import Strategy
from snugfit.strategies.world import agreed, answered, check_same, joined
from snugfit.tasks import Task, prepare, prepare_sides
from snugfit.tracking.cursor import stored_uri
from snugfit.tracking.uri import check_uri, resolve_uri
from snugfit.training import checkpoint
from snugfit.training.assemble import assemble, check_settings
from snugfit.training.evaluate import RowMetric
from snugfit.training.folder import RunFolder
from snugfit.training.ranks import shared_folder, strategy_of
from snugfit.training.result import RunResult
from snugfit.units import parse_bytes, parse_seconds

if TYPE_CHECKING:
    from snugfit.planner.export import Exported
    from snugfit.planner.worker import Worker
    from snugfit.recipe import Recipe

CLASSIFICATION = "text-classification"
RECIPE = "recipe.yaml"
_PLAN = "plan.json"
_DATA = "data.json"
_TIMELINE = "timeline.json"


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
) -> RunResult:
    """Go on with a stopped or killed run from its newest valid checkpoint.

    Args:
        changes: settings over the recipe's that leave the updates as they are, such as plan.devices=2.
    Raises:
        UserError: not a run's folder, nothing to go on from, or the data changed.
        TrainingFailed: the run failed on its own account.
    """
    recipe = recipe_of(run, changes)
    return _run_recipe(recipe, options or RunOptions(), display, RunFolder.open(Path(run)))


def recipe_of(run: str | Path, changes: Sequence[str] = ()) -> Recipe:
    """The recipe of a run, with settings over it.

    Raises:
        RunFolderError: not a run's folder, or one of a run that was made in Python.
    """
    from snugfit.recipe import load_recipe

    folder = RunFolder.open(Path(run))
    if not (folder.path / RECIPE).exists():
        raise RunFolderError(
            f"{run}: has no {RECIPE}. Runs made in Python go on with snugfit.train(…, resume=…)."
        )
    return load_recipe(folder.path / RECIPE, changes)


def evaluate_run(
    source: str, data: str, *, metrics: Sequence[str] = (), bad_rows: str = "fail", uri: str | None = None
) -> dict[str, Any]:
    """Loss and metrics of a run's best model, or of a registered one, on labelled rows."""
    from snugfit.deliver.predict import evaluate_file

    return evaluate_file(
        resolve_model(source, uri=uri), data, metrics or ("accuracy", "macro_f1"), bad_rows=bad_rows
    )


def predict_rows(
    source: str, data: str, output: str | Path, *, bad_rows: str = "fail", uri: str | None = None
) -> dict[str, Any]:
    """Write `data` with predictions of a run's best model, or of a registered one."""
    from snugfit.deliver.predict import predict_file

    return predict_file(resolve_model(source, uri=uri), data, Path(output), bad_rows=bad_rows)


def plan_recipe(recipe: Recipe, target: Target | None = None, worker: Worker | None = None) -> Answer:
    """The plan of a recipe for a machine, by default this one: what it needs, whether that fits, and what to choose.

    Args:
        worker: the planner's process, where it was started before.
    Raises:
        UserError: the recipe, its data or its model cannot be used.
        PlannerFailed: the planner died, or took too long.
    """
    job, plan = job_of(recipe), plan_of(recipe)
    metrics = {metric: metric for metric in job.metrics}
    check_settings(job, plan, recipe.all_techniques(), metrics, validated=recipe.data.validation is not None)
    return planning.plan_recipe(recipe, job, plan, _within_budget(recipe, target or Target()), worker)


def export_plan(recipe: Recipe, answer: Answer, tool: str) -> Exported:
    """The plan of a recipe as files of another tool: hf, accelerate, lightning, deepspeed or torchtitan.

    Raises:
        SettingError: there is no such tool, or it cannot take micro-batches of this size.
    """
    from snugfit.planner.export import ExportedPlan, export
    from snugfit.recipe.chosen import with_choice

    chosen, choice, train = with_choice(recipe, answer.choice), answer.choice, recipe.train
    if choice.strategy in ("hybrid shard", "fsdp + cpu offload"):
        raise SettingError(
            f"export: the plan shares the work by {choice.strategy}, which is not written for other tools yet. Plan without --export, or "
            "for a machine on which ddp or fsdp fits."
        )
    return export(
        ExportedPlan(
            micro_batch=choice.micro_batch,
            global_batch=train.global_batch,
            total_updates=answer.about["total_updates"],
            optimizer=as_entry(chosen.optimizer),
            schedule=None if chosen.schedule is None else as_entry(chosen.schedule),
            numerics=chosen.plan.numerics
            if isinstance(chosen.plan.numerics, str)
            else as_entry(chosen.plan.numerics),
            techniques=tuple(as_entry(each) for each in chosen.techniques),
            devices=choice.devices,
            strategy=choice.strategy.partition(" ")[0],  # type: ignore[arg-type]
            device=answer.device["kind"],
            epochs=None if train.updates is not None else train.epochs,
            max_length=None if recipe.task == "python" else recipe.data.max_length,
            seed=train.seed,
        ),
        tool,
    )


def _within_budget(recipe: Recipe, target: Target) -> Target:
    """The target with the recipe's budget where it says nothing itself."""
    budget = recipe.budget
    return dataclasses.replace(
        target,
        memory=target.memory or _bytes(budget.memory, "memory"),
        host_memory=target.host_memory or _bytes(budget.host_memory, "host_memory"),
        fidelity=target.fidelity or budget.fidelity,
    )


def _bytes(size: int | str | None, key: str) -> int | None:
    return None if size is None else parse_bytes(size, f"budget.{key}")


def planned(recipe: Recipe, options: RunOptions) -> tuple[Recipe, Answer | None, list[str]]:
    """The recipe as its plan would run it, the plan, and what to tell; the recipe as it is where it cannot be planned.

    Raises:
        OutOfMemory: nothing that may be chosen fits.
    """
    if not options.plan:
        return recipe, None, []
    devices = recipe.plan.devices
    if devices > 1 and plan_of(recipe).device == "cpu":
        return recipe, None, []  # they are one device, whose memory the planner would count for each
    try:
        answer = plan_recipe(recipe, Target(contented=True, devices=devices))
    except (PlannerFailed, Untraceable) as error:
        return recipe, None, [f"not planned, so it runs as the recipe says: {error}"]
    if not answer.fits:
        raise impossible(answer)
    from snugfit.recipe.chosen import with_choice

    return with_choice(recipe, answer.choice), answer, []


def _run_recipe(
    recipe: Recipe, options: RunOptions, display: Display | None, folder: RunFolder | None
) -> RunResult:
    world, plan = this_world(), plan_of(recipe)
    with joined(world, plan.device, parse_seconds(recipe.plan.timeout, "plan.timeout")), answered(_outside):
        strategy = strategy_of(plan, world)
        if world.size > 1:
            shared = {"plan.micro_batch": plan.micro_batch, "plan.strategy": plan.strategy}
            check_same({"recipe": recipe.hash(), "versions": versions(), **shared})
        return _run_on_rank(recipe, options, display, folder, strategy)


def _outside() -> str:
    return "before or after all updates"


def _run_on_rank(
    recipe: Recipe,
    options: RunOptions,
    display: Display | None,
    folder: RunFolder | None,
    strategy: Strategy,
) -> RunResult:
    with agreed():
        smoke = options.fast_dev_run or options.overfit_batches is not None
        job, plan = job_of(recipe), plan_of(recipe)
        techniques = recipe.all_techniques()
        metrics: dict[str, str | RowMetric] = {metric: metric for metric in job.metrics}
        check_settings(job, plan, techniques, metrics, validated=recipe.data.validation is not None)
        uri = None
        if recipe.track.mlflow and not smoke and strategy.rank == 0:
            stored = None if folder is None else stored_uri(folder.path)
            uri = resolve_uri(recipe.track.uri, recipe.output, stored=stored)
            check_uri(uri, experiment=recipe.track.experiment, model=recipe.track.register)
        if recipe.track.register and recipe.task != CLASSIFICATION:
            raise SettingError(
                f"track.register: only {CLASSIFICATION} models can be registered, the task is {recipe.task}. Remove it; "
                "the best model is in the run's folder."
            )
        answer: Answer | None = None
        told: list[str] = []
        alone = strategy.world_size == 1
        if folder is None and not smoke and alone:
            recipe, answer, told = planned(recipe, options)
            plan, techniques = plan_of(recipe), recipe.all_techniques()
            options = dataclasses.replace(options, tight=answer is not None and is_tight(answer.as_dict()))
        elif folder is not None:
            options = dataclasses.replace(options, tight=is_tight(folder.read_json(_PLAN)))
        task = prepare(recipe) if options.sides is None else prepare_sides(recipe, options.sides)
        if smoke:
            job, task = shorten(job, task, options)
            if (
                options.overfit_batches is not None
            ):  # a rate that falls would end the learning before the memorising
                techniques = tuple(each for each in techniques if not _lowers_rate(each))
    if not alone:
        rows = {
            "data.train": len(task.material.train),
            "data.validation": len(task.material.validation or ()),
        }
        check_same(
            {"data": dict(task.fingerprints), **{f"{name} (rows)": count for name, count in rows.items()}}
        )
    resume = folder is not None
    if folder is None:
        folder = _new_folder(recipe, plan, answer, options.into, strategy)
    else:
        check_fingerprints(folder.read_json(_DATA), task.fingerprints)
    if strategy.rank == 0:
        folder.write_json(_DATA, dict(task.fingerprints))
    with opened(folder, display) if strategy.rank == 0 else nullcontext(Silent()) as events:
        training = assemble(
            job,
            plan,
            task.material,
            None,
            techniques,
            metrics,
            folder=folder,
            emit=events,
            save_best=task.save_best,
            identity={
                "recipe": recipe.hash(),
                "data": dict(task.fingerprints),
                "updates": job.total_windows(len(task.material.train)),  # a smoke run has others
            },
            strategy=strategy,
        )

        def conclude(result: RunResult) -> RunResult:
            if options.fast_dev_run:
                verify_reload(training)
            if options.overfit_batches is None or strategy.rank > 0:
                return result
            return overfit_verdict(result, folder)

        if strategy.rank > 0:
            return follow(training, options, resume, conclude)
        if not resume and folder.events.stat().st_size > 0:  # processes ended before they had saved anything
            events("resume", update=0, window=0)
        if message := started_anew():
            events("warning", message=message)
        if answer is not None:
            training.expect(expected(answer, plan.device))
        described: dict[str, Any] = {"recipe": recipe.as_dict(), "data": dict(task.data)}
        if options.parent is not None:
            described["parent"] = options.parent
        header = describe_run(recipe.name, folder, training, plan, described)
        tracking = None
        if uri is not None:
            register = _registration(recipe, task) if recipe.track.register else None
            tracking = Tracking(uri, recipe.track.experiment, register)
        return run_session(
            training,
            events,
            header,
            notes=(*told, *task.messages),
            tracking=tracking,
            options=options,
            resume=resume,
            conclude=conclude,
        )


def _new_folder(
    recipe: Recipe, plan: Plan, answer: Answer | None, into: Path | None, strategy: Strategy
) -> RunFolder:
    """The folder of a run that begins, the same on all ranks."""
    if into is not None:
        return RunFolder(into)  # whoever started the process has written it
    folder = shared_folder(strategy, Path(recipe.output), recipe.name)
    if strategy.rank == 0:
        write_beginning(folder, recipe, plan, answer)
    return folder


def write_beginning(folder: RunFolder, recipe: Recipe, plan: Plan, answer: Answer | None) -> None:
    """Write into a new run's folder what it begins with: the recipe, and how it was planned."""
    (folder.path / RECIPE).write_text(recipe.to_yaml(), encoding="utf-8")
    folder.write_json(_PLAN, dataclasses.asdict(plan) if answer is None else answer.as_dict())
    if answer is not None and answer.prediction.timeline is not None:
        folder.write_json(_TIMELINE, dataclasses.asdict(answer.prediction.timeline))


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
