"""The commands `find lr` and `find batch`: settings found by trying them on this machine."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from snugfit.cli.common.options import AllowCodeOption, JsonOption, OverrideArguments, RecipeArgument
from snugfit.cli.common.output import show
from snugfit.cli.common.training import no_recipe, split
from snugfit.display.activity import Activity
from snugfit.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from snugfit.tools.find_batch.result import FoundBatch
    from snugfit.tools.find_lr.measure import RangeTest

_MICRO_BATCH = ("plan", "micro_batch")
_LOADING = "loading the recipe, its data and its model …"

find_app = typer.Typer(rich_markup_mode=None)

_Apply = Annotated[bool, typer.Option("--apply", help="Write what is found into the recipe's file.")]


@find_app.callback()
def _find() -> None:
    """Find a setting of a recipe by trying it."""


@find_app.command("lr", epilog="Example: snugfit find lr agnews.yaml --png lr.png --apply")
def lr(
    recipe: RecipeArgument = None,
    overrides: OverrideArguments = None,
    start: Annotated[float, typer.Option(metavar="RATE", help="Of the first update.")] = 1e-7,
    end: Annotated[float, typer.Option(metavar="RATE", help="Of the last update.")] = 10.0,
    updates: Annotated[int, typer.Option(metavar="N", help="Updates of the test.")] = 100,
    smoothing: Annotated[
        float, typer.Option(metavar="PART", help="Of the losses' average that stays with each update.")
    ] = 0.95,
    per_group: Annotated[
        bool, typer.Option("--per-group", help="Also test each part that has a rate of its own, alone.")
    ] = False,
    png: Annotated[Path | None, typer.Option(metavar="FILE", help="Also draw the curve.")] = None,
    apply: _Apply = False,
    allow_code: AllowCodeOption = False,
    as_json: JsonOption = False,
) -> int:
    """Find a learning rate: raise it from update to update, and look where the loss falls.

    The updates are the recipe's own, without its schedule. Nothing of them is kept. Exit code 1: no rate can be said, or none relied on; --apply then writes none.
    """
    path, changes = _named("lr", recipe, overrides)
    from snugfit.recipe import located

    with Activity("find", _LOADING) as tell, located(path, changes):
        from snugfit.cli.common import recipes
        from snugfit.deliver.files import check_output
        from snugfit.recipe.edit import check_write_back
        from snugfit.tools.find_lr.door import find_lr_recipe, rate_settings
        from snugfit.tools.find_lr.page import check_picture, write_lr_picture

        if png is not None:
            check_output(png, path, "--png", "lr.png", "recipe")
            check_picture(png)
        loaded = recipes.load(path, changes, allow_code=allow_code)
        place = ("optimizer", loaded.optimizer.card.name)
        if apply:
            check_write_back(
                path,
                changes,
                {(*place, setting): (1e-3, 2e-3) for setting in rate_settings(loaded.optimizer)},
            )
        result, page = find_lr_recipe(
            loaded,
            start=start,
            end=end,
            updates=updates,
            smoothing=smoothing,
            per_group=per_group,
            tell=tell,
        )
    _say("page", page)
    if png is not None:
        png.parent.mkdir(parents=True, exist_ok=True)
        _say("png", write_lr_picture(result.name, result.test, png))
    if apply and result.learning_rate is None:
        _say("written", "nothing: no rate is recommended")
    elif apply:
        _write(path, changes, {(*place, setting): value for setting, value in result.settings.items()})
    if as_json:
        show({**result.as_dict(), "folder": str(page.parent)}, as_json)
    else:
        _print_rates("", result.test)
        for name, test in result.parts.items():
            _print_rates(name, test)
    return 0 if result.learning_rate is not None else 1


def _print_rates(name: str, test: RangeTest) -> None:
    if name:
        print(f"\n{name}")
    for rule, each in test.suggestions.items():
        print(f"{rule:<12}{each.learning_rate:<10.2g}{each.reason}")
    print(test.verdict if test.learning_rate is None else f"{'recommended':<12}{test.verdict}")
    print(f"{'ended by':<12}{test.stopped}")


@find_app.command("batch", epilog="Example: snugfit find batch agnews.yaml --memory 8GiB --apply")
def batch(
    recipe: RecipeArgument = None,
    overrides: OverrideArguments = None,
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="What the run may take of the device: 8GiB.")
    ] = None,
    updates: Annotated[int, typer.Option(metavar="N", help="Updates that are timed of each size.")] = 3,
    apply: _Apply = False,
    allow_code: AllowCodeOption = False,
    as_json: JsonOption = False,
) -> int:
    """Find the largest and the fastest micro-batch for the recipe on this device.

    Each size is tried on a window of the longest examples, with all that will be alive. --apply writes the fastest.
    Exit code 1: none fits.
    """
    path, changes = _named("batch", recipe, overrides)
    from snugfit.recipe import located

    budget = None if memory is None else parse_bytes(memory, "--memory")
    with Activity("find", _LOADING) as tell, located(path, changes):
        from snugfit.cli.common import recipes
        from snugfit.core.job import AUTO
        from snugfit.recipe.edit import check_write_back
        from snugfit.tools.find_batch.door import find_batch_recipe

        loaded = recipes.load(path, changes, allow_code=allow_code)
        if apply:
            check_write_back(path, changes, {_MICRO_BATCH: (1, AUTO)})
        result, page = find_batch_recipe(
            loaded,
            memory_bytes=budget,
            updates=updates,
            tell=tell,
        )
    _say("page", page)
    if apply:
        _write(path, changes, {_MICRO_BATCH: result.fastest})
    if as_json:
        show({**result.as_dict(), "folder": str(page.parent)}, as_json)
    else:
        _print_sizes(result)
    return 0


def _print_sizes(result: FoundBatch) -> None:
    print(f"{'micro-batch':>12}{'memory':>12}{'examples/s':>12}  verdict")
    for row in result.rows:
        peak = "" if row.peak_bytes is None else format_bytes(row.peak_bytes)
        speed = "" if row.examples_per_second is None else f"{row.examples_per_second:,.1f}"
        print(f"{row.micro_batch:>12}{peak:>12}{speed:>12}  {row.verdict}")
    print(result.message)


def _named(command: str, recipe: str | None, overrides: list[str] | None) -> tuple[str, list[str]]:
    path, changes = split(recipe, overrides)
    if path is None:
        raise no_recipe(f"find {command}")
    return path, changes


def _write(path: str, overrides: list[str], changes: Mapping[tuple[str, ...], Any]) -> None:
    from snugfit.recipe.edit import write_back

    for line in write_back(path, overrides, changes):
        _say("written", line)


def _say(what: str, text: object) -> None:
    print(f"{what:<9}{text}", file=sys.stderr)
