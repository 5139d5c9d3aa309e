"""From a recipe to the job and the plan that the lower layers know."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from snugfit.core.job import Job, Plan
from snugfit.recipe.entries import FULL
from snugfit.strategies.world import device_of
from snugfit.system.processes import this_world
from snugfit.system.user_objects import load_object
from snugfit.training.assemble import find_device
from snugfit.training.ranks import named_strategy

if TYPE_CHECKING:
    from snugfit.recipe import Recipe


def job_of(recipe: Recipe) -> Job:
    """What the recipe trains."""
    evaluate, train = recipe.evaluate, recipe.train
    metrics = recipe.evaluate.metrics
    return Job(
        global_batch=train.global_batch,
        epochs=None if train.updates is not None else train.epochs,
        windows=train.updates,
        seed=train.seed,
        metrics=metrics,
        best=evaluate.best or next(iter(metrics), "loss"),
        evaluate_every=None if evaluate.every == "epoch" else int(evaluate.every),
        evaluate_batch=evaluate.batch,
        **_early_stopping(recipe),
        non_finite=recipe.non_finite.policy,
        non_finite_limit=recipe.non_finite.limit,
        checkpoint_every=recipe.checkpoint.every,
        checkpoint_keep=recipe.checkpoint.keep,
        checkpoint_save=recipe.checkpoint.save,
    )


def plan_of(recipe: Recipe) -> Plan:
    """How the recipe says that it is to fit, with as many devices as there are processes where these were started already."""
    settings, world = recipe.plan, this_world()
    numerics = settings.numerics
    devices = world.size if world.size > 1 else settings.devices
    return Plan(
        micro_batch=settings.micro_batch,
        numerics=FULL if numerics is None else numerics if isinstance(numerics, str) else numerics.card.name,
        device=device_of(find_device(settings.device), world),
        strategy=named_strategy(settings.strategy, devices),
        devices=devices,
        num_workers=settings.num_workers,
        cut_padding=settings.cut_padding,
        deterministic=settings.deterministic,
    )


def _early_stopping(recipe: Recipe) -> dict[str, Any]:
    rule = recipe.early_stopping
    if rule is None:
        return {}
    setting, function = "early_stopping.stop_when", rule.stop_when
    stop_when = None if function is None else load_object(function, setting=setting, folder=recipe.folder)
    return {"patience": rule.patience, "min_delta": rule.min_delta, "stop_when": stop_when}
