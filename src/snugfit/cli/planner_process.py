"""The planner's process of a command, which loads its libraries beside the command that loads its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snugfit.system.processes import this_world

if TYPE_CHECKING:
    from snugfit.planner.worker import Worker
    from snugfit.recipe import Recipe
    from snugfit.run.call_options import RunOptions


def load_libraries(worker: Worker, recipe: Recipe) -> None:
    """Have the planner's process load what a plan of the recipe needs, and what takes long to load."""
    from snugfit.tasks import find

    of_model = ["transformers.modeling_utils"] if find(recipe.task).reads_model(recipe.model) else []
    worker.load("snugfit.run.planning", *of_model)


def started_for(recipe: Recipe, options: RunOptions) -> Worker | None:
    """Return the planner's process for a run, started where one will be asked: where no plan of such a recipe is kept."""
    from snugfit.run.plan_key import has_plan

    wanted = options.plan and not options.is_smoke and options.into is None and this_world().size == 1
    if not wanted or (has_plan(recipe) and not options.replan):
        return None
    from snugfit.planner.worker import Worker

    worker = Worker()
    load_libraries(worker, recipe)
    return worker
