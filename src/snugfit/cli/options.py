"""Arguments and options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

RecipeArgument = Annotated[str | None, typer.Argument(metavar="RECIPE", help="A recipe's YAML file.")]
OverrideArguments = Annotated[
    list[str] | None,
    typer.Argument(metavar="KEY=VALUE", help="Settings over the recipe's: train.epochs=1."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object on the last line of stdout.")]
