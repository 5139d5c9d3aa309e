"""The setup of a recipe, or of a model and data in Python."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from snugfit.core.job import Job, MicroBatch, Plan
from snugfit.core.losses import Loss
from snugfit.core.selection import check, listed
from snugfit.core.technique import Family, Technique
from snugfit.data.loader import Collate
from snugfit.errors import DataError
from snugfit.step.build import Material, check_dataset, check_settings, find_device, hold_out
from snugfit.step.step import Forward
from snugfit.tasks import Task, prepare
from snugfit.techniques import find
from snugfit.tools.setup import Setup

if TYPE_CHECKING:
    from snugfit.recipe import Recipe


def recipe_setup(recipe: Recipe) -> tuple[Setup, tuple[str, ...]]:
    """What a run of the recipe would be made of, and what there is to tell of its data and model.

    Raises:
        UserError: the recipe, its data or its model cannot be used.
    """
    setup, task = recipe_task(recipe)
    return setup, task.messages


def recipe_task(recipe: Recipe) -> tuple[Setup, Task]:
    """What a run of the recipe would be made of, beside its tokenizer and the summary of its data.

    Raises:
        UserError: the recipe, its data or its model cannot be used.
    """
    from snugfit.recipe.jobs import job_of, plan_of
    from snugfit.recipe.plan_choices import with_precision_here

    recipe, _ = with_precision_here(recipe)
    job, plan, techniques = job_of(recipe), plan_of(recipe), recipe.all_techniques()
    metrics = {metric: metric for metric in job.evaluate.metrics}
    check_settings(job, plan, techniques, metrics, validated=recipe.data.validation is not None)
    task = prepare(recipe)
    setup = Setup(
        recipe.name,
        job,
        plan,
        task.material,
        tuple(techniques),
        metrics=metrics,
        identity={"recipe": recipe.hash(), "data": dict(task.fingerprints)},
    )
    return setup, task


def module_setup(
    model: nn.Module,
    data: Any,
    *,
    loss: str | Loss = "cross_entropy",
    optimizer: torch.optim.Optimizer | Technique | None = None,
    techniques: Sequence[Technique] = (),
    validation: Any = None,
    updates: int | None = None,
    epochs: float | None = 3.0,
    global_batch: int = 32,
    micro_batch: MicroBatch = None,
    cut_padding: bool = True,
    seed: int = 0,
    device: str = "auto",
    collate: Collate | None = None,
    forward: Forward | None = None,
) -> Setup:
    """What `sf.train` would train with the same arguments.

    Args:
        data: a map-style data set; or a DataLoader over one, of which the data set, the batch size (as `global_batch`) and
            the collate function are taken.
    Raises:
        UserError: a setting or the data cannot be used.
    """
    if isinstance(data, DataLoader):
        data, collate, global_batch = _taken_apart(data, collate)
    check_dataset("data", data)
    chosen = listed(optimizer, techniques)
    if optimizer is None and not any("optimizer" in each.card.seams for each in chosen):
        chosen.insert(0, find("adamw")())
    check(chosen)
    numerics = [each.card.name for each in chosen if each.card.family is Family.NUMERICS]
    job = Job.of(global_batch=global_batch, epochs=epochs, updates=updates, seed=seed)
    plan = Plan(
        micro_batch=micro_batch,
        numerics=" ".join(numerics) or "fp32",
        device=find_device(device),
        cut_padding=cut_padding,
    )
    held_out = validation
    if isinstance(validation, (int, float)):
        data, held_out = hold_out(data, validation, seed)
    check_settings(job, plan, chosen, {}, validated=held_out is not None)
    return Setup(
        type(model).__name__,
        job,
        plan,
        Material(model, data, held_out, loss, collate, forward),
        tuple(chosen),
        optimizer if isinstance(optimizer, torch.optim.Optimizer) else None,
    )


def _taken_apart(loader: DataLoader[Any], collate: Collate | None) -> tuple[Any, Collate, int]:
    if loader.batch_size is None:
        raise DataError(
            "data: is a DataLoader with a batch sampler of its own. Give its data set, and global_batch."
        )
    return loader.dataset, collate or loader.collate_fn, loader.batch_size


def output_of(recipe: Recipe) -> Path:
    """Where the recipe's runs are, and what tools find about it."""
    return Path(recipe.output)
