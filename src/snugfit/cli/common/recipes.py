"""Recipes as commands load them: with consent to run the code that they name, which is said."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from snugfit.system.processes import launched

if TYPE_CHECKING:
    from snugfit.recipe import Recipe
    from snugfit.recipe.checks import RowsHere
    from snugfit.recipe.load import BeforeLibraries


def load(
    path: str | Path,
    overrides: Iterable[str] = (),
    *,
    allow_code: bool,
    quiet: bool = False,
    rows_here: RowsHere = "all",
    before_libraries: BeforeLibraries = lambda: None,
) -> Recipe:
    """Load a recipe's file, see that its rows are here, and say which code of the user's it will run.

    Args:
        rows_here, before_libraries: as `load_recipe` has them.

    Raises:
        UserError: as `snugfit.recipe.load_recipe`.
    """
    from snugfit.recipe import load_recipe

    recipe = load_recipe(
        path, overrides, allow_code=allow_code, rows_here=rows_here, before_libraries=before_libraries
    )
    say_code(recipe, path, quiet)
    return recipe


def say_code(recipe: Recipe, path: str | Path, quiet: bool = False) -> None:
    """Say in one line which code the recipe at `path` will run; a process of several leaves that to who started it."""
    from snugfit.system.code_consent import words

    if recipe.code and not quiet and not launched():
        print(f"code     {path} runs {words(recipe.code)}", file=sys.stderr)
