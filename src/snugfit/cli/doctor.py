"""The command `doctor`: pitfalls in a recipe, a run, a model, data, or somebody's own training script."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from snugfit.cli.common.options import AllowCodeOption, JsonOption, OverrideArguments
from snugfit.cli.common.output import show
from snugfit.cli.common.training import split
from snugfit.display.activity import Activity
from snugfit.errors import SettingError

if TYPE_CHECKING:
    from snugfit.doctor.examination import Examination
    from snugfit.doctor.findings import Finding

CERTAIN_FINDING, NOT_LOOKED_AT, SCRIPT_FAILED = 1, 3, 4
_COMMAND = "snugfit.doctor.command"
_DATA_FILES = (".csv", ".tsv", ".json", ".jsonl", ".parquet", ".txt")
_RECIPES = (".yaml", ".yml")

_Target = Annotated[
    str | None,
    typer.Argument(
        metavar="TARGET",
        help="A recipe, a run's folder, a file of rows, or a model as package.module:function.",
    ),
]


class CommandAfterDashes(TyperCommand):
    """Keeps what stands behind `--` for itself: a command of the user's, whose options are not ours."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--" in args:
            place = args.index("--")
            ctx.meta[_COMMAND] = args[place + 1 :]
            args = args[:place]
        rest: list[str] = super().parse_args(ctx, args)
        return rest


def doctor(
    context: typer.Context,
    target: _Target = None,
    overrides: OverrideArguments = None,
    data: Annotated[
        str | None,
        typer.Option(metavar="FUNCTION", help="For a model: its data, as package.module:function."),
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="For a model with data; by default the one of its kind."),
    ] = None,
    text: Annotated[str, typer.Option(metavar="COLUMNS", help="Of a file of rows: title,text.")] = "text",
    label: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Of a file of rows; 'label' where there is one.")
    ] = None,
    validation: Annotated[
        str | None, typer.Option(metavar="FILE", help="Rows to validate on, beside a file of rows.")
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Whose tokenizer reads a file of rows.")
    ] = None,
    detailed_updates: Annotated[
        int,
        typer.Option(metavar="N", help="Of a command: updates whose parameters are looked at one by one."),
    ] = 8,
    stop_after: Annotated[
        int | None,
        typer.Option(metavar="N", help="Of a command: updates after which it is interrupted, as by Ctrl-C."),
    ] = None,
    seconds: Annotated[float, typer.Option(metavar="S", help="Of a command: when it is stopped.")] = 120.0,
    html: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Write the page there.")] = None,
    allow_code: AllowCodeOption = False,
    as_json: JsonOption = False,
) -> int:
    """Look for pitfalls: in a recipe or a run, a model, a file of rows, or a training script of your own.

    A script is given behind two dashes: snugfit doctor -- python train.py. Each finding has its evidence and its fix. Exit code
    0: nothing certain was found, 1: something certain, 2: the doctor was asked wrongly, 3: something of a script was not looked
    at, 4: the script failed.
    """
    if html is not None:
        from snugfit.deliver.files import check_output_folder

        check_output_folder(html, "--html")
    command = context.meta.get(_COMMAND)
    if command is not None:
        if target is not None:
            raise SettingError("doctor", f"'{target}' and a command behind --", "Give one of them.")
        limits = {"updates": detailed_updates, "stop_after": stop_after, "seconds": seconds}
        return _observe(command, limits, html, as_json)
    path, changes = split(target, overrides)
    if path is None:
        raise SettingError(
            "doctor",
            "got nothing to look at",
            "Name a recipe, a run, a file of rows or package.module:function, or a command: snugfit doctor -- "
            "python train.py",
        )
    examination, folder = _examine(
        path,
        changes,
        allow_code=allow_code,
        data=data,
        loss=loss,
        text=text,
        label=label,
        validation=validation,
        model=model,
    )
    page = _page(examination, html or folder)
    if as_json:
        show({**examination.as_dict(), "page": page}, as_json)
    else:
        _print_tokens(examination)
        _print(examination.findings)
        _print_left_out(examination)
        print(examination.summary)
    return CERTAIN_FINDING if examination.certain else 0


def _examine(
    path: str, changes: Sequence[str], *, allow_code: bool, **given: Any
) -> tuple[Examination, Path | None]:
    """Return what was found, and where it is kept, if it is."""
    from snugfit.system.user_objects import is_python_path

    if is_python_path(path):
        with Activity("doctor", f"loading {path} …"):
            return _examine_module(path, given["data"], given["loss"]), None
    if _is_of_rows(path):
        columns = [name.strip() for name in given["text"].split(",") if name.strip()]
        with Activity("doctor", f"reading {path} …"):
            _check_file(path, columns, given["label"])  # before what takes seconds to import
            from snugfit.doctor import door as tool

            return tool.examine_file(
                path,
                text=columns,
                label=given["label"],
                validation=given["validation"],
                tokenizer=given["model"],
            ), None
    run = Path(path) if Path(path).is_dir() else None
    file = path if run is None else str(run / "recipe.yaml")
    with Activity("doctor", "loading the recipe …") as tell:
        from snugfit.cli.common import recipes
        from snugfit.recipe import located

        with located(file, changes):
            recipe = recipes.load(file, changes, allow_code=allow_code, rows_here="unseen")
        from snugfit.doctor import door as tool

        return tool.examine_recipe(recipe, run=run, tell=tell)


def _is_of_rows(path: str) -> bool:
    """Return whether a file holds rows by its name, packed ones too: reading says how they are unpacked.

    >>> _is_of_rows("a.csv"), _is_of_rows("a.csv.bz2"), _is_of_rows("a.csv.yaml"), _is_of_rows("a.yaml")
    (True, True, False, False)
    """
    endings = [each.lower() for each in Path(path).suffixes]
    return bool({*endings} & {*_DATA_FILES}) and endings[-1] not in _RECIPES


def _check_file(path: str, text: Sequence[str], label: str | None) -> None:
    """See that a file of rows is there, of a kind that is read, and has the columns that are named.

    Raises:
        DataError: it has not, as far as its beginning shows it.
    """
    from snugfit.data.sources import check_columns, read_beginning

    table = read_beginning(path, setting="data.train")
    if table is not None and table.rows:
        check_columns(table, {"--text": text, "--label": () if label is None else (label,)})


def _examine_module(spec: str, data: str | None, loss: str | None) -> Examination:
    from snugfit.doctor import door as tool
    from snugfit.models.python_functions import load_python_model
    from snugfit.system.user_objects import load_object

    here = Path.cwd()
    module = load_python_model(spec, folder=here)
    if data is None:
        return tool.examine_module(module, spec)
    rows = load_object(data, setting="--data", folder=here)
    return tool.examine(module, rows() if callable(rows) else rows, loss=loss)


def _observe(command: Sequence[str], limits: dict[str, Any], html: Path | None, as_json: bool) -> int:
    """Run somebody's own training under observation, and say what was seen.

    A script that failed goes before what was found in it, and that before what was not looked at.
    """
    from snugfit.doctor.examination import Examination
    from snugfit.doctor.observe import observe

    seen = observe(command, **limits)
    looked = [f"{seen.updates_seen} updates", seen.ended]
    examination = Examination.of(" ".join(command), seen.findings, looked, seen.left_out)
    page = None
    try:
        page = _page(examination, html)
    finally:  # a page that cannot be written takes none of what hours of a script have shown
        if as_json:
            show({**seen.as_dict(), "ill": examination.ill, "page": page}, as_json)
        else:
            _print(examination.findings)
            _print_left_out(examination)
            for line in seen.error.splitlines() if seen.failed else ():
                print(f"{'':<14}| {line}")
            print(f"{seen.updates_seen} updates seen in {seen.seconds:.0f} s, {seen.ended}")
            print(examination.summary)
    if seen.failed:
        return SCRIPT_FAILED
    return CERTAIN_FINDING if examination.certain else NOT_LOOKED_AT if examination.left_out else 0


def _page(examination: Examination, folder: Path | None) -> str | None:
    if folder is None:
        return None
    from snugfit.doctor.page import write_examination

    page = write_examination(examination, folder)
    print(f"page  {page}", file=sys.stderr)
    return str(page)


def _print(findings: Sequence[Finding]) -> None:
    for finding in findings:
        where = f"  ({finding.where})" if finding.where else ""
        print(f"{finding.certainty:<14}{finding.pitfall}: {finding.what}{where}")
        for line in finding.details:
            print(f"{'':<14}- {line}")
        for line in finding.fix.splitlines():
            print(f"{'':<14}> {line}")


def _print_left_out(examination: Examination) -> None:
    for sentence in examination.left_out:
        print(f"not looked at: {sentence}")


def _print_tokens(examination: Examination) -> None:
    for view in examination.tokens:
        special = ", ".join(f"{name} {count}" for name, count in view.special.items()) or "no special token"
        text = view.text if len(view.text) <= 160 else f"{view.text[:159]}…"
        print(
            f"{'reads':<14}{view.tokens} tokens, {special}{', fills the length' if view.cut else ''}: {text}"
        )
