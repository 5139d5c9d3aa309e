"""The commands that list and describe: techniques, tasks, settings of recipes, and their schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from snugfit.cli.common import completion
from snugfit.cli.common.options import JsonOption
from snugfit.cli.common.output import show, write
from snugfit.display.activity import Activity

_IMPORTING = "importing the techniques …"


def techniques(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="One technique or preset, in full; package.module:Class is imported.",
            autocompletion=completion.techniques,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List what recipes can use, or describe one of them.

    Techniques that installed packages list are shown with their package, and are imported when they are named alone.
    """
    with Activity(text=_IMPORTING, at_once=False):
        from snugfit.recipe import technique_cards

        preset = technique_cards.preset_card(name) if name is not None else None
        cards = technique_cards.cards(name) if preset is None else []
    values: dict[str, Any]
    if preset is not None:
        values, text = {"preset": preset}, technique_cards.preset_page(preset)
    elif name is not None:
        values, text = {"techniques": cards}, technique_cards.page(cards[0])
    else:
        listed = technique_cards.listed()
        values, text = {"techniques": cards, "packages": listed}, technique_cards.listing(cards, listed)
    if as_json:
        show(values, as_json)
    else:
        print(text)


def tasks(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help="One task, in full.", autocompletion=completion.tasks),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List what a recipe can train, or describe one task: its rows, its settings, and what comes of it."""
    from snugfit.recipe import task_cards

    facts = task_cards.tasks(name)
    if name is not None:
        values, text = {"tasks": facts}, task_cards.page(facts[0])
    else:
        others = task_cards.listed()
        values, text = {"tasks": facts, "packages": others}, task_cards.listing(facts, others)
    if as_json:
        show(values, as_json)
    else:
        print(text)


def recipe(
    key: Annotated[
        str | None,
        typer.Argument(
            metavar="KEY",
            help="One setting in full, or a section's settings.",
            autocompletion=completion.settings,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the settings of recipes, or describe one: meaning, type, default, example, which commands read it."""
    from snugfit.recipe import reference

    settings = reference.entries(key)
    if as_json:
        show({"settings": [entry.as_dict() for entry in settings]}, as_json)
    else:
        print(
            reference.page(settings[0])
            if [entry.key for entry in settings] == [key]
            else reference.listing(settings)
        )


def schema(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write it there.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Print the JSON schema of recipes, for editors.

    An editor finds it by a recipe's first line: # yaml-language-server: $schema=snugfit.schema.json
    """
    with Activity(text=_IMPORTING, at_once=False):
        from snugfit.recipe import schema_with_plugins

        content = schema_with_plugins()
    if output is not None:
        write(output, json.dumps(content, indent=2, ensure_ascii=False) + "\n")
        show({"schema": str(output)}, as_json)
    elif as_json:
        show(content, as_json)
    else:
        print(json.dumps(content, indent=2, ensure_ascii=False))
