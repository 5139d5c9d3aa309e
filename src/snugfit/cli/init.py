"""The command `init`: a recipe for what is here, or a step for a loop that is here."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from snugfit.cli.common.options import JsonOption
from snugfit.cli.common.output import show
from snugfit.errors import SettingError

if TYPE_CHECKING:
    from snugfit.tools.init.door import Beginning


def init(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="DIR|FILE|MODEL",
            help="Rows, a script, a model's folder or name; what lies in this folder by default.",
        ),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Settings that are fixed: data.label=team."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="The recipe to write.")
    ] = None,
    script: Annotated[
        Path | None,
        typer.Option("--from", metavar="SCRIPT", help="Print the diff that puts a step into its loop."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write a recipe that runs for what is here: a table of texts, a text file, a script or a model.

    Columns, task, lengths and a model that can be had here are found out and written down with the reason for each.
    Nothing is overwritten, and a script is read, never run or changed.
    """
    from snugfit.recipe import is_override

    settings = list(overrides or [])
    if source is not None and is_override(source):
        settings.insert(0, source)
        source = None
    if script is not None:
        if source is not None or settings or output is not None:
            raise SettingError("init --from", "takes a script alone", "Leave the others out.")
        _print_diff(script, as_json)
        return
    wrong = [text for text in settings if not is_override(text)]
    if wrong:
        raise SettingError("init", f"got '{wrong[0]}' too", "Name one source; a setting is key=value.")
    from snugfit.tools.init.door import begin

    made = begin(source, settings, output, lambda text: print(text, file=sys.stderr))
    if as_json:
        show(made.as_dict(), as_json)
        return
    print("\n".join(beginning_lines(made)))


def beginning_lines(made: Beginning, *, train: bool = False) -> list[str]:
    """Return what was written and why; what to do next, or, where it is trained on at once, how to have another task."""
    new = "" if made.files else ", as it is there"
    lines = [
        ("recipe", f"{made.recipe}{new}"),
        ("task", f"{made.task}: {made.reason}"),
        ("model", f"{made.model}: {made.origin}"),
        *(
            ("or", f"--task {task}" if train else f"{task}: {command}")
            for task, command in made.others.items()
        ),
        *(("note", note) for note in made.notes),
    ]
    if not train:
        width = max(len(command) for command, _ in made.commands)
        lines += [
            ("next" if place == 0 else "", f"{command:<{width}}  {purpose}")
            for place, (command, purpose) in enumerate(made.commands)
        ]
    return [f"{label:<9}{text}" for label, text in lines]


def _print_diff(script: Path, as_json: bool) -> None:
    from snugfit.tools.init.loop_diff import loop_diff

    result = loop_diff(script)
    if as_json:
        show(result.as_dict(), as_json)
        return
    print(result.diff, end="")
    for note in result.notes:
        print(note, file=sys.stderr)
