"""`snugfit soup`: the mean of several runs' weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from snugfit.cli.common.options import AllowCodeOption, BadRowsOption, JsonOption, RegistryOption
from snugfit.cli.common.output import show
from snugfit.display.activity import Activity


def soup(
    sources: Annotated[
        list[str], typer.Argument(metavar="SOURCE...", help="Folders of runs, or stored models.")
    ],
    data: Annotated[
        str,
        typer.Option(
            "--data", metavar="DATA", help="Labelled rows to choose by, which no run was trained on."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FOLDER", help="The model to write.")],
    metric: Annotated[str, typer.Option(metavar="NAME", help="What to choose by; the task's first.")] = "",
    all_of_them: Annotated[bool, typer.Option("--all", help="The mean of all, whatever it scores.")] = False,
    bad_rows: BadRowsOption = "fail",
    uri: RegistryOption = None,
    allow_code: AllowCodeOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write one model of the mean of several runs' weights: of those that raise its score.

    For runs that began from the same weights, such as one pretrained model with several learning rates. It costs what one model costs.
    """
    with Activity("soup", f"loading {len(sources)} models, then scoring {data} …"):
        from snugfit.deliver.soup import make_soup

        result = make_soup(
            sources,
            data,
            output,
            metric=metric,
            all_of_them=all_of_them,
            bad_rows=bad_rows,
            uri=uri,
            allow_code=allow_code,
        )
    show(result, as_json)
