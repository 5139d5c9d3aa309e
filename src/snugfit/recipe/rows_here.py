"""The rows and the model of a recipe, looked at before the libraries are imported that train: files, kinds, columns, and how much is read."""

from __future__ import annotations

import os
from typing import Literal

from snugfit.data.named_sources import Sources
from snugfit.data.sources import RowSource, check_columns, read_beginning
from snugfit.errors import DataError, SettingError
from snugfit.models.folders import CONFIG_PREFIX, most_tokens
from snugfit.recipe.declarations import Recipe
from snugfit.recipe.strict_yaml import Places
from snugfit.system.user_objects import is_python_path
from snugfit.tasks import find
from snugfit.tasks.data_section import Data

_OF_FILES = ("pictures", "sounds", "masks")
"""Kinds of models whose rows may be a folder of files."""


RowsHere = Literal["all", "present", "unseen"]
"""Which files of rows are looked at: all, which have to be there, those that are there, or none."""


def check_rows(recipe: Recipe, places: Places, which: RowsHere) -> None:
    """See that files of rows are there, are of a kind that is read, and have the columns that the task cannot do without.

    What only all rows can tell is left to the reading of them; so are data sets of Hugging Face, shards and functions.

    Raises:
        DataError, SettingError: one is not there or cannot be used; names the recipe's line.
    """
    card = find(recipe.task)
    if card.own_code or is_python_path(recipe.task) or which == "unseen":
        return  # a task of the user's own reads what it likes
    held_out = recipe.data.held_out
    sources: dict[str, RowSource] = {"data.train": recipe.data.rows}
    if isinstance(held_out, (str, Sources)):
        sources["data.validation"] = held_out
    try:
        for setting, source in sources.items():
            files = source.files if isinstance(source, Sources) else (str(source),)
            if card.model in _OF_FILES and any(map(os.path.exists, files)):
                continue
            if which == "present" and not all(map(os.path.exists, files)):
                continue
            table = read_beginning(source, setting=setting, folder=recipe.folder)
            if table is not None and (table.rows or table.parts):
                check_columns(table, {f"data.{name}": _columns(recipe.data, name) for name in card.columns})
    except (DataError, SettingError) as error:
        raise error.about(places.name(tuple(error.setting.split(".")))) from error


def check_length(recipe: Recipe, places: Places) -> None:
    """See that the model reads `data.max_length` tokens, where its files are here and say how many it can.

    Raises:
        SettingError: it reads fewer.
    """
    if "max_length" not in find(recipe.task).settings:
        return
    length, limit = (
        recipe.data.max_length,
        most_tokens(recipe.model.removeprefix(CONFIG_PREFIX), recipe.folder),
    )
    if limit is not None and length > limit:
        raise places.error(
            ("data", "max_length"),
            f"{length} is more than the {limit} tokens that this model can read",
            "Lower it.",
        )


def _columns(data: Data, name: str) -> tuple[str, ...]:
    """Return the columns that a setting names, whether it is written as one or as a list of them."""
    written = getattr(data, name)
    if written is None:
        return ()
    return (written,) if isinstance(written, str) else tuple(written)
