"""The commands of `track`: what a run's tracker has not got yet is sent."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from snugfit.cli.common.options import JsonOption, RunArgument
from snugfit.cli.common.output import show

track_app = typer.Typer(rich_markup_mode=None)


@track_app.callback()
def _track() -> None:
    """Send runs to a tracker."""


@track_app.command(
    epilog="Example: snugfit track replay runs/agnews/20261121-0930-1a2b --uri http://host:5000"
)
def replay(
    run: RunArgument,
    uri: Annotated[
        str | None,
        typer.Option(
            metavar="URI",
            help="Another tracker than the run's own, or tensorboard, wandb, trackio or package.module:Class.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Send what a run's tracker has not got yet.

    With another tracker's address or name, the whole run is sent there: with tensorboard it is written for TensorBoard, into the run's folder.
    """
    from snugfit.tracking.sender import replay as send

    replayed = send(run, uri)
    show(dataclasses.asdict(replayed), as_json)
