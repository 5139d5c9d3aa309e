"""Models and rows that functions of the user's own make."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from snugfit.errors import DataError
from snugfit.system.user_objects import load_object
from snugfit.tasks.card import Card
from snugfit.tasks.task import Task, loss_of

if TYPE_CHECKING:
    from snugfit.kit.sharded_loading import KeepPart
    from snugfit.recipe import Recipe


def training_rows(recipe: Recipe) -> Any:
    """Return all rows of a Python recipe's `data.train`.

    Raises:
        DataError, SettingError: they cannot be had.
    """
    return _rows(recipe, "data.train", recipe.data.train)


def _load(recipe: Recipe, empty: bool, _keep: KeepPart | None) -> Task:
    """Prepare functions of the user's own: a model that a function makes is whole, so that there is no part of it to keep."""
    from snugfit.models.python import load_python_model
    from snugfit.step.build import Material, hold_out

    train = _rows(recipe, "data.train", recipe.data.train)
    validation = recipe.data.validation
    held_out = None
    if isinstance(validation, str):
        held_out = _rows(recipe, "data.validation", validation)
    elif validation:
        train, held_out = hold_out(train, validation, recipe.train.seed)
    model = load_python_model(recipe.model, folder=recipe.folder, seed=recipe.train.seed, empty=empty)
    collate = recipe.data.collate
    return Task(
        Material(
            model,
            train,
            held_out,
            loss_of(recipe),
            None if collate is None else load_object(collate, setting="data.collate", folder=recipe.folder),
        ),
        meta={"task": recipe.task, "model": recipe.model, "numerics": recipe.as_dict()["plan"]["numerics"]},
        data={"train": len(train), "validation": 0 if held_out is None else len(held_out)},
        fingerprints={},
    )


def _rows(recipe: Recipe, setting: str, spec: str) -> Any:
    function = load_object(spec, setting=setting, folder=recipe.folder)
    dataset = function() if callable(function) else function
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise DataError(
            setting,
            f"'{spec}' returned {type(dataset).__name__}",
            "Return a data set with a length and an index: a list, or a torch.utils.data.Dataset.",
        )
    return dataset


CARD = Card(
    name="python",
    summary="Train a model of your own on rows of your own.",
    loss="cross_entropy",
    settings=("collate",),
    load=_load,
    own_code=True,
)
