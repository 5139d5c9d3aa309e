"""The command `tune`: a search for the best values of a recipe's settings."""

from __future__ import annotations

import shlex
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
from snugfit.errors import short_path

if TYPE_CHECKING:
    from snugfit.tools.tune.result import Tuned

_BEST_SHOWN = 5


def tune(
    recipe: RecipeArgument = None,
    overrides: OverrideArguments = None,
    search: Annotated[
        list[str] | None,
        typer.Option(
            "--search",
            metavar="NAME=VALUES",
            help="A setting and its values: 0.1..0.5, 2..8, log:1e-5..1e-2, or a,b,c. Once for each.",
        ),
    ] = None,
    space: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A YAML file with them, under the key search.")
    ] = None,
    trials: Annotated[
        int, typer.Option(metavar="N", help="How many to run, those of before counted in.")
    ] = 20,
    pruner: Annotated[
        str, typer.Option(metavar="NAME", help="Stops trials that are behind: median, hyperband or none.")
    ] = "median",
    stop_after: StopAfterOption = None,
    plan: Annotated[bool, typer.Option(help="Plan each trial first, and run what fits.")] = True,
    allow_code: AllowCodeOption = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> int:
    """Search for the values of settings with which a recipe is best, by evaluate.best.

    Every trial is a run of its own. Stopped or killed, the same command goes on; with more --trials it adds some.
    """
    path, changes = split(recipe, overrides)
    if path is None:
        raise no_recipe("tune", " --search train.epochs=1..5")
    options = run_options(stop_after, quiet, plan=plan)
    with Activity("tune", "reading the recipe and the search …", quiet=quiet) as tell:
        from snugfit.cli.common import recipes
        from snugfit.recipe import located
        from snugfit.tools.tune import door
        from snugfit.tools.tune.search_space import read_file, read_options

        wanted = {} if space is None else read_file(space, allow_code=allow_code)
        wanted |= read_options(search or ())
        with located(path, changes):
            result = door.tune(
                recipes.load(path, changes, allow_code=allow_code, quiet=quiet),
                wanted,
                trials=trials,
                pruner=pruner,
                options=options,
                watch=each_shown(quiet),
                tell=tell,
            )
        best = str(Path(result.folder) / door.BEST)
        follows = (
            f"train it with: snugfit train {shlex.quote(short_path(best))}"
            if result.finished
            else "go on with the same command"
        )
        file = None if result.best is None else best
        return end(result, door.TOOL, tell, follows, as_json, partial(_print, result), recipe=file)


def _print(result: Tuned) -> None:
    from snugfit.tools.tune.result import shown

    rows = [[result.metric, "trial", "", *result.space]]
    for trial in result.ranked()[:_BEST_SHOWN]:
        value = "" if trial.value is None else f"{trial.value:.4f}"
        rows.append(
            [value, str(trial.number), trial.state, *(shown(trial.parameters[name]) for name in result.space)]
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    print(f"{result.summary()}\nin {short_path(result.folder)}")
