"""Devices that are not here, for recipes of a task: one without float64, and a GPU that is pretended."""

from __future__ import annotations

import torch

from snugfit.core.tree import leaves
from snugfit.planner.answers.answer import Answer
from snugfit.planner.target import Target
from snugfit.recipe import Recipe
from snugfit.run.plans.recipe_plan import plan_recipe
from snugfit.step.evaluate import Scored, evaluate
from snugfit.tools.setup import recipe_setup
from tests.unit.run.training.no_float64 import WithoutFloat64


def without_float64(recipe: Recipe) -> dict[str, float]:
    """The scores after an update, of which nothing may make float64 on the device: MPS has none."""
    setup, _ = recipe_setup(recipe)
    step, validation = setup.step(), setup.validation()
    assert validation is not None
    window = next(setup.loader().windows(0, 1))
    batches = [*validation.windows(0, 1)]
    given = leaves([each.data for each in (window, *batches)])
    assert not any(tensor.dtype == torch.float64 for tensor in given), "refused by `Batch.to`"
    with WithoutFloat64():
        assert step(window).applied
        return evaluate(Scored.of(step), batches, setup.metrics)


def planned_for_a_gpu(recipe: Recipe) -> Answer:
    """The plan of the recipe as it stands for a GPU of the catalogue: its update is run there on tensors without numbers."""
    return plan_recipe(recipe, Target(device="rtx4090", search=False))
