"""The command `certify`: the laws of training on the user's own model and data."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from snugfit.cli.common.options import AllowCodeOption, JsonOption, OverrideArguments
from snugfit.cli.common.output import show
from snugfit.cli.common.training import split
from snugfit.display.activity import Activity
from snugfit.errors import SettingError
from snugfit.units import counted

if TYPE_CHECKING:
    from snugfit.results.verdicts import Certificate

_LABEL = "certify"

_Source = Annotated[
    str | None, typer.Argument(metavar="RECIPE_OR_RUN", help="A recipe's YAML file, or a run's folder.")
]


def certify(
    source: _Source = None,
    overrides: OverrideArguments = None,
    dtype: Annotated[
        str | None,
        typer.Option(metavar="TYPE", help="float64 or float32; float64 by default, where it can be had."),
    ] = None,
    rows: Annotated[int, typer.Option(metavar="N", help="Examples of a window, at most.")] = 8,
    ranks: Annotated[bool, typer.Option(help="Also start two processes.")] = True,
    technique: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="A technique in place of a recipe: package.module:Class, or by its name."
        ),
    ] = None,
    oracle: Annotated[
        str | None,
        typer.Option(
            metavar="PATH", help="package.module:function, a loop that trains as the technique does."
        ),
    ] = None,
    allow_code: AllowCodeOption = False,
    as_json: JsonOption = False,
) -> int:
    """Try the laws of training on a recipe's own model and data, each with its error.

    Any split of a window, recomputing, stopping and going on, a window that is skipped, and two ranks must leave the result
    as it is. Nothing is trained. Exit code 1: a law is broken.

    With --technique, the laws that Snugfit's own techniques are held to, on a small built-in problem.
    """
    path, changes = split(source, overrides)
    if technique is not None:
        return _certify_technique(
            technique, oracle, dtype, [*filter(None, [source]), *(overrides or [])], as_json
        )
    if oracle is not None:
        raise SettingError("--oracle", "is of a technique", "Name that too: --technique package.module:Class")
    if path is None:
        raise SettingError(
            "certify",
            "got no recipe and no run",
            "Name a recipe or a run's folder, for example: snugfit certify agnews.yaml",
        )
    from snugfit.recipe import located

    run = Path(path) if Path(path).is_dir() else None
    file = path if run is None else str(_recipe_of(run))
    with Activity(_LABEL, "loading the recipe, its data and its model …") as tell:
        from snugfit.cli.common import recipes
        from snugfit.tools.certify.door import certify_recipe

        with located(file, changes):
            recipe = recipes.load(file, changes, allow_code=allow_code)
        certificate, page = certify_recipe(recipe, dtype=dtype, rows=rows, ranks=ranks, run=run, tell=tell)
    return _end(certificate, page, as_json)


def _certify_technique(
    technique: str, oracle: str | None, dtype: str | None, others: Sequence[str], as_json: bool
) -> int:
    from snugfit.tools.certify.door import certify_technique_named

    if others:
        raise SettingError(
            "--technique",
            f"is tried on a built-in problem, got '{others[0]}' too",
            "Give one of them: a recipe that lists the technique is certified on its own model.",
        )
    with Activity(_LABEL) as tell:
        certificate, page = certify_technique_named(technique, oracle=oracle, dtype=dtype, tell=tell)
    return _end(certificate, page, as_json)


def _end(certificate: Certificate, page: Path, as_json: bool) -> int:
    """Show what was found, and return the exit code."""
    print(f"page  {page}", file=sys.stderr)
    if as_json:
        show({**certificate.as_dict(), "page": str(page)}, as_json)
    else:
        _print(certificate)
    return 1 if certificate.broken else 0


def _recipe_of(run: Path) -> Path:
    from snugfit.results.run_folder import RECIPE, RunFolder

    file = RunFolder.open(run).path / RECIPE
    if not file.exists():
        raise SettingError(
            "certify",
            f"{run} has no recipe.yaml: its run was made in Python",
            "Call snugfit.certify(model, data, …).",
        )
    return file


def _print(certificate: Certificate) -> None:
    for law in certificate.laws:
        print(f"{law.verdict:<8}{law.title:<34}{law.figures}")
        if law.verdict != "held" and law.module:
            print(f"        module {law.module}, furthest off {law.worst}")
        elif law.verdict == "broken" and law.worst:
            print(f"        furthest off {law.worst}")
        for reason in law.reasons:
            print(f"        {reason}")
    print(
        f"in {certificate.dtype} on {certificate.device}, {counted(certificate.rows, 'example')} in a window"
    )
    for condition in certificate.conditions:
        print(condition)
