"""The way from a recipe to the job and the plan that the lower layers know."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from snugfit.core.job import Execution, Hooks, Job, Plan
from snugfit.recipe.entries import FULL
from snugfit.step.build import find_device
from snugfit.step.metrics.metric import named_metrics
from snugfit.strategies.process_group import device_of
from snugfit.strategies.registry import named_strategy
from snugfit.system.processes import this_world
from snugfit.system.user_objects import load_object

if TYPE_CHECKING:
    from snugfit.recipe import Recipe
    from snugfit.step.metrics.metric import RowMetric


def job_of(recipe: Recipe) -> Job:
    """Return what the recipe trains."""
    rule = recipe.early_stopping
    if rule is not None and isinstance(rule.stop_when, str):
        setting = "early_stopping.stop_when"
        rule = replace(rule, stop_when=load_object(rule.stop_when, setting=setting, folder=recipe.folder))
    evaluate = recipe.evaluate
    if isinstance(evaluate.keep_when, str):
        function = load_object(evaluate.keep_when, setting="evaluate.keep_when", folder=recipe.folder)
        evaluate = replace(evaluate, keep_when=function)
    return Job(recipe.train, evaluate, rule, recipe.non_finite, recipe.checkpoint, _hooks(recipe))


def metrics_of(recipe: Recipe) -> dict[str, str | RowMetric]:
    """Return the recipe's metrics by their names, those of the user's own imported."""
    return named_metrics(recipe.evaluate.metrics, "evaluate.metrics", recipe.folder)


def _hooks(recipe: Recipe) -> Hooks:
    """Return the recipe's hooks, imported."""
    named = {name: getattr(recipe.hooks, name) for name in Hooks.settings()}
    functions = {
        name: load_object(path, setting=f"hooks.{name}", folder=recipe.folder)
        for name, path in named.items()
        if isinstance(path, str)
    }
    return replace(recipe.hooks, **functions)


def plan_of(recipe: Recipe) -> Plan:
    """Return how the recipe says that it is to fit, with as many devices as there are processes where these were started already."""
    settings, world = recipe.plan, this_world()
    devices = world.size if world.size > 1 else settings.devices
    given = {name: getattr(settings, name) for name in Execution.settings()}
    return Plan(
        **{**given, "devices": devices},
        numerics=numerics_of(recipe),
        device=device_of(find_device(settings.device), world),
        strategy=named_strategy(settings.strategy, devices),
    )


def numerics_of(recipe: Recipe) -> str:
    """Return the name of what forward and backward compute in."""
    numerics = recipe.plan.numerics
    if numerics is None:
        return FULL
    return numerics if isinstance(numerics, str) else numerics.card.name
