"""The command `cv`: cross-validation of a recipe, and going on with one."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from snugfit.cli.common.many_runs import each_shown, end
from snugfit.cli.common.options import (
    AllowCodeOption,
    JsonOption,
    OverrideArguments,
    QuietOption,
    RecipeArgument,
    StopAfterOption,
)
from snugfit.cli.common.training import no_recipe, run_options, split
from snugfit.display.activity import Activity
from snugfit.errors import SettingError, short_path

if TYPE_CHECKING:
    from snugfit.tools.cross_validation.result import CrossValidation


def cv(
    recipe: RecipeArgument = None,
    overrides: OverrideArguments = None,
    folds: Annotated[int | None, typer.Option(metavar="N", help="Parts of the rows; 5 by default.")] = None,
    repeats: Annotated[
        int | None, typer.Option(metavar="N", help="Deal the rows anew this often; 1 by default.")
    ] = None,
    seeds: Annotated[
        int | None, typer.Option(metavar="N", help="Train each fold from this many seeds; 1 by default.")
    ] = None,
    stratified: Annotated[
        bool | None,
        typer.Option(
            "--stratified/--no-stratified",
            help="Keep the share of each label in every fold; by default for classification.",
        ),
    ] = None,
    groups: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMNS", help="Hold rows out together that are equal in these columns: author."
        ),
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMN",
            help="Score each fold on the rows that follow those it trains on, by this column of dates or numbers.",
        ),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Go on with a cross-validation, in its folder.")
    ] = None,
    stop_after: StopAfterOption = None,
    plan: Annotated[bool, typer.Option(help="Plan each fold first, and run what fits.")] = True,
    allow_code: AllowCodeOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> int:
    """Train a recipe on all parts of its rows but one and score it on that one, for each part in turn.

    Every fold is a run of its own. Stopped or killed, it goes on with --resume: finished folds are not run again.
    """
    path, changes = split(recipe, overrides)
    options = run_options(stop_after, quiet, plan=plan)
    dealing = {
        "--folds": folds,
        "--repeats": repeats,
        "--seeds": seeds,
        "--stratified": stratified,
        "--groups": groups,
        "--time": time,
    }
    given = [option for option, value in dealing.items() if value is not None]
    if resume is not None and (path is not None or changes or given):
        what = path or (changes or given)[0]
        raise SettingError(
            "--resume", f"goes on with the recipe and the folds of {resume}", f"Leave out {what}."
        )
    if resume is None and path is None:
        raise no_recipe("cv", " --folds 5")
    with Activity("cv", "reading the recipe and its rows …", quiet=quiet) as tell:
        from snugfit.cli.common import recipes
        from snugfit.recipe import located
        from snugfit.tools.cross_validation import door

        if path is None:
            assert resume is not None
            result = door.resume(resume, options, each_shown(quiet), tell, allow_code=allow_code)
        else:
            with located(path, changes):
                result = door.cross_validate(
                    recipes.load(path, changes, allow_code=allow_code, quiet=quiet),
                    folds=5 if folds is None else folds,
                    repeats=1 if repeats is None else repeats,
                    seeds=1 if seeds is None else seeds,
                    stratified=stratified,
                    group_by=tuple(name.strip() for name in (groups or "").split(",") if name.strip()),
                    time=time,
                    options=options,
                    watch=each_shown(quiet),
                    tell=tell,
                )
        follows = None if result.finished else f"go on with: snugfit cv --resume {short_path(result.folder)}"
        return end(result, door.TOOL, tell, follows, as_json, partial(_print, result))


def _print(result: CrossValidation) -> None:
    width = max(16, *(len(name) + 2 for name in result.summary.mean))
    for name, mean in result.summary.mean.items():
        spread = result.summary.spread[name]
        scores = "  ".join(f"{each.best[name]:.4f}" for each in result.scores)
        print(
            f"{name:<{width}}{mean:.4f} ± {spread.deviation:.4f}   error of the mean {spread.corrected_error:.4f}   {scores}"
        )
    print(f"{len(result.scores)} of {result.planned} folds in {short_path(result.folder)}")
