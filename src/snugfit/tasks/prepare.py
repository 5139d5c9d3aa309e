"""The way from a recipe to what its task trains: its own data, one part of them, or assumed ones for a plan."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snugfit.data.files.file_kinds import is_hub_name, is_shards
from snugfit.errors import SettingError
from snugfit.system.malloc import trim_malloc
from snugfit.system.user_objects import is_python_path
from snugfit.tasks import discover, find
from snugfit.tasks.task import Task, loss_of

if TYPE_CHECKING:
    from snugfit.kit.sharded_loading import KeepPart
    from snugfit.tasks.task_recipe import TaskRecipe

Sides = tuple[Sequence[int], Sequence[int]]
"""Places of the rows to train on, and of those to validate on."""


def prepare(recipe: TaskRecipe, *, empty: bool = False, keep: KeepPart | None = None) -> Task:
    """Load and check the recipe's data, then its model.

    Args:
        empty: the model without weights, on the meta device.
        keep: what to keep of each weight that is read from a file, as `core.parts` says.
    Raises:
        DataError, ModelError, SettingError: what cannot be used.
    """
    from snugfit.data.bad_rows import left_out_rows
    from snugfit.data.examples import whole_examples
    from snugfit.data.mixture import mixed
    from snugfit.data.splits.balance import balance_rows

    _check_pictures(recipe)
    with left_out_rows() as faults:
        task = find(recipe.task).load(recipe, empty, keep)
    task = replace(task, left_out=tuple(faults))
    if recipe.data.balance is not None:
        task = replace(
            task, messages=(*task.messages, *balance_rows(task.material.train, recipe.data.balance))
        )
    mixed(task.material.train)  # before anything is written, as a source that has no row left is refused
    for side in (task.material.train, task.material.validation):
        if (examples := whole_examples(side)) is not None:
            examples.drop_table()
    trim_malloc()  # else the memory of rows and of a tokenizer's work would stay with this process for as long as it trains
    names = tuple(task.meta.get("labels") or ())
    return replace(task, material=replace(task.material, class_counts=task.class_counts, class_names=names))


def _check_pictures(recipe: TaskRecipe) -> None:
    """Refuse a technique that changes pictures where the task has none for it.

    Raises:
        SettingError: names it, and the tasks that have.
    """
    from snugfit.core.selection import picture_technique

    changing = picture_technique(recipe.all_techniques())
    if changing is not None and not find(recipe.task).changes_pictures:
        able = ", ".join(name for name, card in discover().items() if card.changes_pictures)
        raise SettingError(
            "techniques",
            f"'{changing.card.name}' changes the pictures that are trained on, and task {recipe.task} changes none",
            f"Remove it. Tasks that do are {able}.",
        )


def prepare_sides(recipe: TaskRecipe, sides: Sides) -> Task:
    """Return what a recipe trains of its own Python data, with one part of the rows to train on and another to validate on."""
    from torch.utils.data import Subset

    training, validation = sides
    task = prepare(recipe.without_validation())
    whole = task.material.train
    material = replace(task.material, train=Subset(whole, training), validation=Subset(whole, validation))
    digest = hashlib.sha256(json.dumps([list(training), list(validation)]).encode()).hexdigest()
    return replace(
        task,
        material=material,
        data={"train": len(training), "validation": len(validation)},
        fingerprints={"rows of the fold": digest},
    )


def lacking(recipe: TaskRecipe) -> str | None:
    """Return what a plan has to do without, in words: the file of training rows, or the tokenizer; None where both are there."""
    from snugfit.models.folders import has_tokenizer
    from snugfit.models.hub import resolve

    if find(recipe.task).load_empty is None:
        return None
    for name in recipe.data.train_sources:
        path = Path(name).expanduser()
        if is_shards(name, recipe.folder):
            continue  # read, and refused, by their own names
        if not (is_python_path(name) or is_hub_name(name) or (recipe.folder / path).exists()):
            return f"data.train ({path.name}) is not there"
    _, _, local = resolve(recipe.model, recipe.from_scratch, recipe.folder)
    if local is not None and not has_tokenizer(local):
        return f"model ({local.name}) has no tokenizer"
    return None


def prepare_assumed(recipe: TaskRecipe) -> Task:
    """Return the model without weights, and examples of `data.max_length` tokens in place of the recipe's own: for a plan alone.

    Raises:
        ModelError, SettingError: what cannot be used.
    """
    from snugfit.data.assumed import assumed_text, collate_alike
    from snugfit.models.tokenizer import check_length
    from snugfit.step.build import Material

    card = find(recipe.task)
    assert card.load_empty is not None
    _check_pictures(recipe)
    load = partial(card.load_empty, recipe)
    model: Any = load(recipe.model)
    # the tokenizer's, by which a classifier on a decoder finds the last token; some configurations have no such field
    if getattr(model.config, "pad_token_id", None) is None:
        model.config.pad_token_id = 0
    check_length(model, recipe.data.max_length)
    data = assumed_text(
        recipe.data.max_length, recipe.train.examples_of(recipe.data.max_length), classes=card.classes
    )
    held_out = None if recipe.data.validation is None else data
    loss = "" if card.assume is not None else loss_of(recipe)
    material = Material(model, data, held_out, loss, collate_alike, load=load)
    if card.assume is not None:
        material = card.assume(recipe, material)
    return Task(material, meta={}, data={}, fingerprints={})
