"""Recipes: strict YAML in, checked settings out."""

from __future__ import annotations

from snugfit.recipe.declarations import COLUMNS, Recipe
from snugfit.recipe.load import load_recipe
from snugfit.recipe.located import located
from snugfit.recipe.overrides import is_override
from snugfit.recipe.schema import json_schema, schema_with_plugins

__all__ = [
    "COLUMNS",
    "Recipe",
    "is_override",
    "json_schema",
    "load_recipe",
    "located",
    "schema_with_plugins",
]
