"""Arguments and options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from snugfit.cli.common import completion

RunArgument = Annotated[
    Path, typer.Argument(metavar="RUN", help="A run's folder: runs/agnews/20261121-0930-1a2b.")
]
RecipeArgument = Annotated[str | None, typer.Argument(metavar="RECIPE", help="A recipe's YAML file.")]
OverrideArguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="Settings over the recipe's: train.epochs=1.",
        autocompletion=completion.overrides,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="One JSON object on the last line of stdout.")]
AllowCodeOption = Annotated[
    bool,
    typer.Option(
        "--allow-code",
        help="Run the code that the file names as package.module:function. A recipe under the current directory needs no such consent.",
    ),
]
QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="Show nothing while it runs.")]
TimeOption = Annotated[
    str | None,
    typer.Option(
        metavar="TIME",
        help="Cut the run to what fits into this time (30m, 3h), its schedule with it; measured first.",
    ),
]
StopAfterOption = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="Save and stop after this time (30s, 2h), with exit code 75."),
]
RegistryOption = Annotated[
    str | None,
    typer.Option(
        "--uri", metavar="URI", help="Where models:/ are stored; MLFLOW_TRACKING_URI, else runs/mlflow.db."
    ),
]
BadRowsOption = Annotated[str, typer.Option(metavar="POLICY", help="Rows that cannot be used: fail or skip.")]


def number_or_word(text: str) -> int | str:
    """Return a whole number where an option is one, else its text.

    >>> number_or_word("4"), number_or_word("flips")
    (4, 'flips')
    """
    try:
        return int(text)
    except ValueError:
        return text
