"""The command `new`: the files of a technique of the user's own, with everything named that has to be filled in."""

from __future__ import annotations

import keyword
import string
import sys
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from snugfit.cli.options import JsonOption
from snugfit.cli.output import show
from snugfit.errors import RunFolderError, SettingError

FILL_IN = "FILL IN"
"""What stands where something has to be written."""

_FILES = {"{name}.py": "technique.py.txt", "test_{name}.py": "test.py.txt", "{name}.md": "page.md.txt"}
"""The files by name, each with the template that it is written from."""

new_app = typer.Typer(help="Begin something of your own: snugfit new technique NAME.")


@new_app.callback()
def _new() -> None:
    """Begin something of your own."""


@new_app.command(epilog="Example: snugfit new technique sharper_loss my_pkg")
def technique(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the technique, such as sharper_loss.")],
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Your package, or any folder.")] = Path(),
    as_json: JsonOption = False,
) -> None:
    """Write a technique of your own, its test and its page into a folder.

    The test passes as it is written. What has to be filled in is marked FILL IN. Nothing is overwritten.
    """
    files = write_technique(name, folder)
    module, class_name = module_of(folder / f"{name}.py"), class_name_of(name)
    test = files[1]
    show(
        {
            "files": [str(file) for file in files],
            "fill in": f"each place that says {FILL_IN}",
            "import from": str(root_of(test)),
            "test": f"pytest {test}",
            "certify": f"snugfit certify --technique {module}:{class_name} --oracle {module_of(test)}:train",
            "recipe": f'techniques: ["{module}:{class_name}"]',
        },
        as_json,
    )


def write_technique(name: str, folder: Path) -> list[Path]:
    """Write the files of a technique, and return them.

    Raises:
        SettingError: it cannot have that name, or one of the files is there already; none is written then.
        RunFolderError: they cannot be written.
    """
    _check_name(name)
    if folder.exists() and not folder.is_dir():
        raise SettingError(
            "new technique", f"{folder} is a file, expected a folder", "Name the folder of your package."
        )
    texts = {folder / file.format(name=name): template for file, template in _FILES.items()}
    for path in texts:
        if path.exists():
            raise SettingError(
                "new technique",
                f"{path} exists, and nothing is overwritten",
                "Choose another name or folder.",
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
            "new technique",
            f"{folder} cannot be written: {error.strerror}",
            "Name a folder that can be written.",
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


def _check_name(name: str) -> None:
    from snugfit.techniques import discover

    if not name.isidentifier() or not name.isascii() or name != name.lower() or keyword.iskeyword(name):
        raise SettingError(
            "new technique",
            f"got the name '{name}', expected small letters, digits and _, such as sharper_loss",
            "Give another name.",
        )
    if name in sys.stdlib_module_names:
        raise SettingError(
            "new technique", f"{name}.py would hide Python's own module '{name}'", "Choose another name."
        )
    if name in discover():
        raise SettingError("new technique", f"Snugfit has a technique '{name}'", "Choose another name.")
