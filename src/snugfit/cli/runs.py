"""`snugfit runs`: runs beside each other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from snugfit.cli.common.options import JsonOption
from snugfit.cli.common.output import show


def runs(
    places: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN]...", help="Folders of runs, or one that holds runs.", show_default="runs/"
        ),
    ] = None,
    sort: Annotated[
        str, typer.Option("--sort", metavar="METRIC", help="The best by this metric first; else the newest.")
    ] = "",
    as_json: JsonOption = False,
) -> None:
    """List runs with what became of them; of several that are named, the settings in which they differ too."""
    from snugfit.report.runs_table import comparison, differences, read_runs, sorted_by, table

    given = places or [Path("runs")]
    rows = read_runs(given)
    if sort:
        rows = sorted_by(rows, sort)
    compared = len(given) > 1
    if as_json:
        differing = {"differ": differences(rows)} if compared else {}
        show({"runs": [row.as_dict() for row in rows], **differing}, as_json)
        return
    print("\n".join([*table(rows), *(["", *comparison(rows)] if compared else [])]))
