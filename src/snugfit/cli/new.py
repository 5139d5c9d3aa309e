"""The command `new`: the files of a technique or a task of the user's own, with everything named that has to be filled in."""

from __future__ import annotations

import keyword
import string
import sys
from collections.abc import Collection
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

import typer

from snugfit.cli.common.options import JsonOption
from snugfit.cli.common.output import show
from snugfit.display.activity import Activity
from snugfit.errors import RunFolderError, SettingError

TemplateKind = Literal["technique", "task"]

FILL_IN = "FILL IN"
"""What stands where something has to be written."""

_FILES = {
    "{name}.py": "{kind}.py.txt",
    "test_{name}.py": "{kind}_test.py.txt",
    "{name}.md": "{kind}_page.md.txt",
}
"""The files by name, each with the template that it is written from."""

_EXAMPLES = {"technique": "sharper_loss", "task": "reading_time"}

new_app = typer.Typer(help="Begin something of your own: snugfit new technique NAME, snugfit new task NAME.")

_Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Your package, or any folder.")]


@new_app.callback()
def _new() -> None:
    """Begin something of your own."""


@new_app.command(epilog="Example: snugfit new technique sharper_loss my_pkg")
def technique(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the technique, such as sharper_loss.")],
    folder: _Folder = Path(),
    as_json: JsonOption = False,
) -> None:
    """Write a technique of your own, its test and its page into a folder.

    The test passes as it is written. What has to be filled in is marked FILL IN. Nothing is overwritten.
    """
    with Activity(text="importing the techniques …", at_once=False):
        from snugfit.techniques import discover

        files = write_files("technique", name, folder, discover())
    module, class_name = module_of(files[0]), class_name_of(name)
    answer = _answer(files)
    answer["certify"] = (
        f"snugfit certify --technique {module}:{class_name} --oracle {module_of(files[1])}:train"
    )
    show({**answer, "recipe": f'techniques: ["{module}:{class_name}"]'}, as_json)


@new_app.command(epilog="Example: snugfit new task reading_time my_pkg")
def task(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the task, such as reading_time.")],
    folder: _Folder = Path(),
    as_json: JsonOption = False,
) -> None:
    """Write a task of your own, its test and its page into a folder.

    The test passes as it is written. What has to be filled in is marked FILL IN. Nothing is overwritten.
    """
    from snugfit.tasks import discover

    files = write_files("task", name, folder, discover())
    show({**_answer(files), "recipe": f"task: {module_of(files[0])}:CARD"}, as_json)


def _answer(files: list[Path]) -> dict[str, object]:
    """Return what is said of any kind of files."""
    return {
        "files": [str(file) for file in files],
        "fill in": f"each place that says {FILL_IN}",
        "import from": str(root_of(files[1])),
        "test": f"pytest {files[1]}",
    }


def write_files(kind: TemplateKind, name: str, folder: Path, ours: Collection[str]) -> list[Path]:
    """Write the files of a technique or a task, and return them.

    Args:
        ours: names of Snugfit's own, none of which it can have.
    Raises:
        SettingError: it cannot have that name, or one of the files is there already; none is written then.
        RunFolderError: they cannot be written.
    """
    command = f"new {kind}"
    _check_name(kind, name, ours)
    if folder.exists() and not folder.is_dir():
        raise SettingError(
            command, f"{folder} is a file, expected a folder", "Name the folder of your package."
        )
    texts = {folder / file.format(name=name): template.format(kind=kind) for file, template in _FILES.items()}
    for path in texts:
        if path.exists():
            raise SettingError(
                command, f"{path} exists, and nothing is overwritten", "Choose another name or folder."
            )
    values = {"name": name, "class_name": class_name_of(name), "module": module_of(folder / f"{name}.py")}
    templates = resources.files("snugfit.cli").joinpath("templates")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, template in texts.items():
            text = string.Template(templates.joinpath(template).read_text(encoding="utf-8"))
            with path.open("x", encoding="utf-8") as file:
                file.write(text.substitute(values))
    except OSError as error:
        raise RunFolderError(
            command, f"{folder} cannot be written: {error.strerror}", "Name a folder that can be written."
        ) from error
    return list(texts)


def class_name_of(name: str) -> str:
    """Return the name of a technique's class.

    >>> class_name_of("sharper_loss")
    'SharperLoss'
    """
    return "".join(part.capitalize() for part in name.split("_"))


def module_of(file: Path) -> str:
    """Return the dotted name under which a file is imported: with the packages that it lies in."""
    return ".".join(file.resolve().with_suffix("").relative_to(root_of(file)).parts)


def root_of(file: Path) -> Path:
    """Return the folder from which a file is imported: the first one around it that is no package."""
    return next(each for each in file.resolve().parents if not (each / "__init__.py").exists())


def _check_name(kind: TemplateKind, name: str, ours: Collection[str]) -> None:
    command = f"new {kind}"
    if not name.isidentifier() or not name.isascii() or name != name.lower() or keyword.iskeyword(name):
        raise SettingError(
            command,
            f"got the name '{name}', expected small letters, digits and _, such as {_EXAMPLES[kind]}",
            "Give another name.",
        )
    if name in sys.stdlib_module_names:
        raise SettingError(
            command, f"{name}.py would hide Python's own module '{name}'", "Choose another name."
        )
    if name in ours:
        raise SettingError(command, f"Snugfit has a {kind} '{name}'", "Choose another name.")
