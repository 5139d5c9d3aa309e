"""The user's code that a recipe names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from snugfit.system.code_consent import named_code
from snugfit.tasks import find
from snugfit.tasks.data_section import COLUMNS

if TYPE_CHECKING:
    from snugfit.recipe.declarations import Recipe

_TEXT = ("name", "preset", "folder", "output")
_DATA = (*COLUMNS, "classes")
"""Settings whose text is never imported, whatever it looks like."""


def code_of(recipe: Recipe) -> dict[str, str]:
    """Return the settings that name code, each with its `package.module:function`.

    Every other setting counts, so that a new one that names code needs no line here.
    """
    return _named(recipe.as_dict(), recipe)


def written_code(recipe: Recipe) -> dict[str, str]:
    """Return the same of a recipe whose techniques are still as they were written."""
    from snugfit.recipe.write import plain_value

    return _named(plain_value(recipe), recipe)


def _named(settings: Mapping[str, Any], recipe: Recipe) -> dict[str, str]:
    values = {key: value for key, value in settings.items() if key not in _TEXT}
    values["data"] = {key: value for key, value in values["data"].items() if key not in _DATA}
    values["track"] = values["track"]["others"]
    values["evaluate"] = {key: value for key, value in values["evaluate"].items() if key != "best"}
    if not find(recipe.task).own_code:
        del values["model"]  # a name on the hub, a folder, or `config:NAME`
    return named_code(values)
