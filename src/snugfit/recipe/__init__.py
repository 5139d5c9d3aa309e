"""Recipes: strict YAML in, checked settings out.

Names are loaded when they are first used: a command says what it does before the declarations of all settings are imported.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from snugfit.recipe.declarations import Recipe as Recipe
    from snugfit.recipe.load import load_recipe as load_recipe
    from snugfit.recipe.overrides import is_override as is_override
    from snugfit.recipe.schema import json_schema as json_schema
    from snugfit.recipe.schema import schema_with_plugins as schema_with_plugins
    from snugfit.recipe.setting_places import located as located

_HOMES = {
    "Recipe": "declarations",
    "is_override": "overrides",
    "json_schema": "schema",
    "load_recipe": "load",
    "located": "setting_places",
    "schema_with_plugins": "schema",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    member = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = member
    return member
