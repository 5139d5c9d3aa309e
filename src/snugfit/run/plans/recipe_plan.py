"""The plan of a recipe, from the cache or made by `planning`, exported to other tools, and written into the folder of the run that keeps it."""

from __future__ import annotations

import dataclasses
import warnings
from typing import TYPE_CHECKING

from snugfit.core.entry import as_entry
from snugfit.core.job import AUTO, Job, Plan
from snugfit.errors import PlannerFailed, SettingError, SnugfitWarning, Untraceable
from snugfit.planner.answers.answer import Answer
from snugfit.planner.choice.adapter_rate import adapter_notes
from snugfit.planner.plan import impossible
from snugfit.planner.target import Target
from snugfit.planner.worker import Watch, ignore, wait
from snugfit.recipe.jobs import job_of, metrics_of, plan_of
from snugfit.results.run_folder import RECIPE, RunFolder
from snugfit.run.call_options import RunOptions
from snugfit.run.plans import planning
from snugfit.run.plans.plan_cache import place_of
from snugfit.run.training.assemble import check_settings
from snugfit.tasks import find
from snugfit.units import parse_bytes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from snugfit.planner.export import Exported
    from snugfit.planner.worker import Worker
    from snugfit.recipe import Recipe

PLAN = "plan.json"
_TIMELINE = "timeline.json"


def plan_recipe(
    recipe: Recipe,
    target: Target | None = None,
    worker: Worker | None = None,
    watch: Watch = ignore,
    *,
    anew: bool = False,
    made: tuple[Job, Plan] | None = None,
    own: Path | None = None,
    meanwhile: Callable[[], None] = wait,
) -> Answer:
    """Return the plan of a recipe for a machine, by default this one: what it needs, whether that fits, and what to choose.

    One that was made before and still holds is taken from the user's cache, and says so in `about`.

    Args:
        anew: whether to plan even so.
        worker: the planner's process, where it was started before; watch: what one that is started now tells how far the search is.
        made: the recipe's job and plan, where they were made and checked before.
        own: a folder of this process for plans of recipes that name code.
        meanwhile: what this process does while another one plans.
    Raises:
        UserError: the recipe, its data or its model cannot be used.
        PlannerFailed: the planner died, or took too long.
    """
    if made is None:
        made = job, plan = job_of(recipe), plan_of(recipe)
        metrics = metrics_of(recipe)
        validated, here = recipe.data.validation is not None, target is None or target.device is None
        check_settings(job, plan, recipe.all_techniques(), metrics, validated=validated, here=here)
    within = _within_budget(recipe, target or Target())
    place = place_of(recipe, within, own)
    if place is not None and not anew:
        cached, problem = place.read()
        if cached is not None:
            return _with_adapter_note(recipe, cached)
        if problem:
            warnings.warn(problem, SnugfitWarning, stacklevel=2)
    answer = planning.plan_anew(recipe, *made, within, worker, watch, meanwhile)
    if place is not None:
        try:
            place.write(answer)
        except OSError as error:
            warnings.warn(f"The plan cannot be kept for later runs: {error}.", SnugfitWarning, stacklevel=2)
    return _with_adapter_note(recipe, answer)


def _with_adapter_note(recipe: Recipe, answer: Answer) -> Answer:
    """Return an answer that says of adapters which it has put in what they are; a plan that is kept may be one for other learning rates."""
    return answer.with_notes(_adapter_notes(recipe, answer))


def _adapter_notes(recipe: Recipe, answer: Answer) -> tuple[str, ...]:
    choice = answer.choice
    return adapter_notes(recipe.all_techniques(), choice.techniques) if choice.added else ()


def export_plan(recipe: Recipe, answer: Answer, tool: str, nodes: int = 1) -> Exported:
    """Return the plan of a recipe as files of another tool: hf, accelerate, lightning, deepspeed or torchtitan.

    Args:
        nodes: machines that the plan's devices are on, where it has several.
    Raises:
        SettingError: there is no such tool, or it cannot take micro-batches of this size, updates that differ in size or this way to share.
    """
    from snugfit.planner.export import ExportedPlan, check, export
    from snugfit.recipe.plan_choices import with_choice
    from snugfit.recipe.write import numerics_entry

    recipe_to_run, choice, train = with_choice(recipe, answer.choice), answer.choice, recipe.train
    check(tool, choice.strategy)
    if train.global_batch is None or train.sizes_given:
        raise SettingError(
            f"train.{next(iter(train.sizes_given))}",
            f"cannot be exported: {tool} has updates of one number of examples",
            "Give train.global_batch alone.",
        )
    return export(
        ExportedPlan(
            micro_batch=choice.micro_batch,
            global_batch=train.global_batch,
            total_updates=answer.about["total_updates"],
            optimizer=as_entry(recipe_to_run.optimizer),
            schedule=None if recipe_to_run.schedule is None else as_entry(recipe_to_run.schedule),
            numerics=numerics_entry(recipe_to_run),
            techniques=tuple(as_entry(each) for each in recipe_to_run.techniques),
            devices=choice.devices,
            nodes=nodes if choice.devices > 1 else 1,
            strategy=choice.strategy,  # type: ignore[arg-type]
            device=answer.device["kind"],
            epochs=None if train.updates is not None else train.epochs,
            max_length=recipe.data.max_length if "max_length" in find(recipe.task).settings else None,
            seed=train.seed,
        ),
        tool,
    )


def _within_budget(recipe: Recipe, target: Target) -> Target:
    """Return the target with the recipe's budget, and what its plan names, where it says nothing itself."""
    budget, plan = recipe.budget, recipe.plan
    return dataclasses.replace(
        target,
        memory=target.memory or _bytes(budget.memory, "memory"),
        host_memory=target.host_memory or _bytes(budget.host_memory, "host_memory"),
        fidelity=target.fidelity or budget.fidelity,
        keeps_precision=plan.numerics is not None,
        strategy=target.strategy or (None if plan.strategy == AUTO else plan.strategy),
        goal=target.goal or plan.goal,
        worth=plan.worth if target.worth is None else target.worth,
        slower=plan.slower if target.slower is None else target.slower,
        price=plan.price if target.price is None else target.price,
    )


def _bytes(size: int | str | None, key: str) -> int | None:
    return None if size is None else parse_bytes(size, f"budget.{key}")


def planned(
    recipe: Recipe,
    options: RunOptions,
    made: tuple[Job, Plan] | None = None,
    meanwhile: Callable[[], None] = wait,
) -> tuple[Recipe, Answer | None, list[str]]:
    """Return the recipe as its plan would run it, the plan, and what to tell; the recipe as it is where it cannot be planned.

    Args:
        made: the recipe's job and plan, where they were made and checked before.
        meanwhile: what this process does while another one plans.
    Raises:
        OutOfMemory: nothing that may be chosen fits.
    """
    if not options.plan:
        return recipe, None, []
    try:
        with options.search_line() as watch:
            target = Target(devices=recipe.plan.devices, fewer=False)
            if options.worker is not None:
                options.worker.watch = watch
            answer = plan_recipe(
                recipe,
                target,
                options.worker,
                watch,
                anew=options.replan,
                made=made,
                own=options.plans,
                meanwhile=meanwhile,
            )
    except (PlannerFailed, Untraceable) as error:
        return recipe, None, [f"not planned, so it runs as the recipe says: {error}"]
    finally:
        if options.worker is not None:  # it has answered, or was not asked
            options.worker.close()
    if not answer.fits:
        raise impossible(answer)
    from snugfit.recipe.plan_choices import with_choice

    return with_choice(recipe, answer.choice), answer, list(_adapter_notes(recipe, answer))


def write_beginning(folder: RunFolder, recipe: Recipe, plan: Plan, answer: Answer | None) -> None:
    """Write into a new run's folder what it begins with: the recipe, and how it was planned."""
    # a folder with a recipe alone may be somebody's own, so the plan comes first
    folder.write_json(PLAN, dataclasses.asdict(plan) if answer is None else answer.as_dict())
    folder.write_text(RECIPE, recipe.to_yaml())
    if answer is not None and answer.prediction.timeline is not None:
        folder.write_json(_TIMELINE, dataclasses.asdict(answer.prediction.timeline))
