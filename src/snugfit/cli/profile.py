"""The command `profile`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from snugfit.cli.common.options import AllowCodeOption, JsonOption, OverrideArguments, RecipeArgument
from snugfit.cli.common.output import show
from snugfit.cli.common.training import no_recipe, split
from snugfit.display.activity import Activity
from snugfit.errors import SettingError

if TYPE_CHECKING:
    from snugfit.tools.profile.result import Profile

_OPERATORS_SHOWN = 10


def profile(
    recipe: RecipeArgument = None,
    overrides: OverrideArguments = None,
    updates: Annotated[
        int, typer.Option(metavar="N", help="Updates that are timed, and again as many that are profiled.")
    ] = 5,
    memory: Annotated[
        bool, typer.Option("--memory", help="Also what the memory of an update consists of.")
    ] = False,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Also write the trace for TensorBoard's plug-in.")
    ] = False,
    shapes: Annotated[
        bool, typer.Option("--shapes", help="Also the shapes of the operators' inputs.")
    ] = False,
    stacks: Annotated[
        bool, typer.Option("--stacks", help="Also the functions of your code that the operators come from.")
    ] = False,
    sort: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Operators by their time on the device or on the host; on the device by default.",
        ),
    ] = None,
    allow_code: AllowCodeOption = False,
    as_json: JsonOption = False,
) -> None:
    """Say what limits the updates of a recipe, where their time goes and what to try.

    A few updates are made on the run's own windows, on a copy of the model. Trace, table and page are kept beside its runs.
    """
    path, changes = split(recipe, overrides)
    if path is None:
        raise no_recipe("profile")
    if updates < 1:
        raise SettingError("--updates", f"must be at least 1, found {updates}", "Give 1 or more.")
    from snugfit.recipe import located

    with Activity("profile", "loading the recipe, its data and its model …") as tell, located(path, changes):
        from snugfit.cli.common import recipes
        from snugfit.tools.profile.door import profile_recipe
        from snugfit.tools.profile.result import Detail

        result = profile_recipe(
            recipes.load(path, changes, allow_code=allow_code),
            updates=updates,
            memory=memory,
            tensorboard=tensorboard,
            detail=Detail(shapes, stacks, sort),
            tell=tell,
        )
    if as_json:
        show(result.as_dict(), as_json)
    else:
        _print(result)
        if shapes or stacks or sort is not None:
            _print_operators(result)


def _print(result: Profile) -> None:
    from snugfit.planner.answers.plan_figures import brief_number, brief_seconds, digits, share
    from snugfit.report.memory_page import piece_words
    from snugfit.tools.profile.page import NAME

    print(result.verdict)
    print(
        f"\nAn update takes {brief_seconds(result.seconds_per_update)}, {digits(result.examples_per_second)} examples/s; its "
        f"{brief_number(result.flops_per_update, 'FLOP')} are {share(result.share_of_peak)} of what the device could compute in the time."
    )
    for name, seconds in result.phases.items():
        print(f"  {name:<12}{brief_seconds(seconds):>9}  {share(seconds / result.seconds_per_update):>4}")
    for name, each in result.occasional.items():
        print(f"  {name:<12}{brief_seconds(each.seconds):>9}  each {each.every:,} updates")
    print("\nCulprits")
    for number, culprit in enumerate(result.culprits, 1):
        print(f"  {number}. {culprit.words()}")
    print("\nTry" if result.advice else "\nNothing to try is worth it.")
    for advice in result.advice:
        print(f"  {advice.gain:.2f}× at most  {advice.change} ({advice.by})")
    for use in result.memory:
        print(f"\nMemory, {use.basis}: {piece_words(use)}")
    for note in result.notes:
        print(f"\n{note}")
    print(f"\npage   {result.folder / NAME}\ntrace  {result.folder / 'trace.json'}")


def _print_operators(result: Profile) -> None:
    from snugfit.planner.answers.plan_figures import brief_seconds

    print(f"\nOperators, by their time on the {result.sorted_by}")
    for each in result.listed[:_OPERATORS_SHOWN]:
        seconds = each.host_seconds if result.by_host else each.seconds
        print(f"  {brief_seconds(seconds):>9}  {each.name}")
        for words in (each.shapes, each.line):
            if words:
                print(f"{'':<13}{words}")
