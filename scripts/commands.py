"""Write docs/commands.md: every command with its arguments, options and an example, from their declarations.

python -m scripts.commands        writes the page; building the documentation does too
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from snugfit.cli.app import app

PAGE = Path(__file__).resolve().parent.parent / "docs" / "commands.md"

HEAD = """# Commands

<!-- Made by scripts/commands.py whenever the documentation is built. -->

What `snugfit COMMAND --help` says, of every command. Results go to stdout, with `--json` as one object on the last line; everything else goes to
stderr. [Exit codes](run_folder.md#how-a-command-ends) are the same everywhere. A recipe's settings are given behind it as
[`key=value`](recipe_reference.md), such as `train.epochs=1`."""


def render() -> str:
    """Return the page as Markdown."""
    return (
        "\n\n".join(
            [HEAD, *(_section(name, command) for name, command in _commands(get_command(app), "snugfit"))]
        )
        + "\n"
    )


def _commands(group: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield commands by their whole names, those of a group in its place."""
    for own, command in group.commands.items():
        if command.hidden:
            continue
        if hasattr(command, "commands"):
            yield from _commands(command, f"{name} {own}")
        else:
            yield f"{name} {own}", command


def _section(name: str, command: Any) -> str:
    shown = [each for each in command.params if not getattr(each, "hidden", False)]
    arguments = [each for each in shown if each.param_type_name == "argument"]
    usage = " ".join([name, *(_argument(each) for each in arguments), "[OPTIONS]"])
    rows = [f"| `{_escaped(_name(each))}` | {_escaped(_meaning(each))} |" for each in shown]
    parts = [
        f"## `{name}`",
        _paragraphs(command.help),
        f"```\n{usage}\n```",
        "\n".join(["| | |", "|---|---|", *rows]),
    ]
    if command.epilog:
        label, _, example = command.epilog.partition(": ")
        parts.append(f"{label}: `{example}`")
    return "\n\n".join(parts)


def _paragraphs(text: str) -> str:
    """Return a docstring's paragraphs, a line each."""
    return "\n\n".join(" ".join(each.split()) for each in text.split("\n\n"))


def _argument(each: Any) -> str:
    """Return an argument as a usage line has it, in brackets where it may be left out."""
    name = str(each.metavar or each.name.upper())
    name = name if each.nargs == 1 or name.endswith("...") else f"{name}..."
    return name if each.required or name.startswith("[") else f"[{name}]"


def _name(each: Any) -> str:
    """Return how an argument or an option is written."""
    if each.param_type_name == "argument":
        return _argument(each)
    names = ", ".join([*each.opts, *each.secondary_opts])
    return names if each.is_flag else f"{names} {each.metavar or each.name.upper()}"


def _meaning(each: Any) -> str:
    """Return what it is for, with its default where that says something."""
    plain = (
        each.param_type_name == "argument"
        or each.is_flag
        or each.default in (None, "")
        or callable(each.default)
    )
    return f"{each.help}{'' if plain else f' Default: {each.default}.'}"


def _escaped(text: str) -> str:
    """Return text for a cell of a table."""
    return text.replace("|", "\\|").replace("\n", " ")


def write_page() -> None:
    """Write the page where it is not current: tests read it while the documentation is built beside them."""
    page = render()
    if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page:
        PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    write_page()
