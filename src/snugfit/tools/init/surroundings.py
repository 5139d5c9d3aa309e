"""Files of a folder by what they are: tables of rows, scripts, pictures; and why some cannot be trained on."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from snugfit.data.bad_rows import NOT_UTF8, Fault, as_utf8
from snugfit.data.files.file_formats import READERS
from snugfit.data.files.file_kinds import (
    PICTURE_SUFFIXES,
    SOUND_SUFFIXES,
    files_in,
    holds_predictions,
    pictures_in,
)
from snugfit.data.pictures.mask_folders import mask_folders, paired
from snugfit.data.sources import read_table
from snugfit.data.tables.table_cells import as_plain_numbers, written_number
from snugfit.errors import DataError, nearest_file
from snugfit.tasks import discover
from snugfit.tasks.recognition import CLASS_COLUMNS, PLAIN_TEXT, Rows, Script
from snugfit.tools.init.request import Request
from snugfit.units import counted

Part = Literal["training", "validation", "test"]

_EXPORTED = {".xlsx", ".xls", ".arrow", ".feather", ".zip", ".gz"}
_NO_ROWS = re.compile(
    r"(vocab|merges|spiece|requirements.*|constraints.*|readme|license|notice|robots|cmakelists"
    r"|(.*_)?config|tokenizer.*|special_tokens_map|added_tokens|chat_template|.*\.index|.*\.schema|package(-lock)?|dataset_infos?|net(work)?)$",
    re.I,
)
_PARTS: Mapping[Part, re.Pattern[str]] = {
    "training": re.compile(r"((?P<subject>.*)[-_.])?train(ing)?$", re.I),
    "validation": re.compile(r"((?P<subject>.*)[-_.])?(validation|valid|val|dev|eval)$", re.I),
    "test": re.compile(r"((?P<subject>.*)[-_.])?test$", re.I),
}


@dataclass(frozen=True)
class Surroundings:
    """The contents of a folder that a recipe can be made from.

    Args:
        tables: files of rows to train on, the likeliest first.
        held_out: files of rows to validate or to test on, by their names.
        pictures, sounds: how many there are, in folders below too.
        others: files whose rows have to be exported first.
    """

    folder: Path
    tables: tuple[Path, ...]
    held_out: tuple[Path, ...]
    scripts: tuple[Path, ...]
    pictures: int
    sounds: int
    others: tuple[Path, ...]


def survey(folder: Path) -> Surroundings:
    """Return what lies in a folder, by names; predictions that were written there are no rows to train on."""
    files = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    tables = [
        path
        for path in files
        if path.suffix.lower() in READERS and not _NO_ROWS.match(path.stem) and not holds_predictions(path)
    ]
    held_out = [path for path in tables if part_of(path)[1] in ("validation", "test")]
    rows = [path for path in tables if path not in held_out] or held_out
    rows.sort(key=lambda path: (part_of(path)[1] != "training", -path.stat().st_size))
    below = [*files, *(path for level in ("*/*", "*/*/*") for path in folder.glob(level))]
    return Surroundings(
        folder,
        tuple(rows),
        tuple(path for path in held_out if path not in rows),
        tuple(path for path in files if path.suffix == ".py"),
        sum(path.suffix.lower() in PICTURE_SUFFIXES for path in below),
        sum(path.suffix.lower() in SOUND_SUFFIXES for path in below),
        tuple(path for path in files if path.suffix.lower() in _EXPORTED and path.name != "config.json"),
    )


def part_of(path: Path) -> tuple[str, Part | None]:
    """Return what a file or a folder is about, and which part of its rows it holds, by its name.

    >>> part_of(Path("news_test.csv")), part_of(Path("valid.csv")), part_of(Path("news.csv"))
    (('news', 'test'), ('', 'validation'), ('news', None))
    """
    name = path.name if path.is_dir() else path.stem
    for part, pattern in _PARTS.items():
        if match := pattern.match(name):
            return (match["subject"] or "").casefold(), part
    return name.casefold(), None


def held_out_of(rows: Path, paths: Iterable[Path], part: Part) -> list[Path]:
    """Return the files or folders that hold a part of what some rows are about, by their names; last those that name no subject."""
    subject, _ = part_of(rows)
    of_part = [path for path in paths if path != rows and part_of(path) in ((subject, part), ("", part))]
    return sorted(of_part, key=lambda path: part_of(path)[0] != subject)


@dataclass(frozen=True)
class ClassFolders:
    """Folders with a folder of files for each class.

    Args:
        train: the files to train on.
        validation, test: others for that, by their names.
    """

    train: Path
    validation: Path | None = None
    test: Path | None = None


def class_folders(folder: Path, suffixes: Set[str]) -> ClassFolders | None:
    """Return the files of some suffixes in a folder, or in the first one below it that has any in folders of classes; None where there are none."""
    for place in (folder, *_folders(folder)):
        parts = _folders(place)
        train = next(
            (each for each in parts if part_of(each)[1] == "training" and _has_classes(each, suffixes)), None
        )
        if train is not None:
            with_classes = [each for each in parts if _has_classes(each, suffixes)]
            return ClassFolders(
                train,
                next(iter(held_out_of(train, with_classes, "validation")), None),
                next(iter(held_out_of(train, with_classes, "test")), None),
            )
        if _has_classes(place, suffixes):
            return ClassFolders(place)
    return None


def _folders(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _has_classes(folder: Path, suffixes: Set[str]) -> bool:
    """Return whether two folders in a folder have such files right in them."""
    holding = (
        each for each in _folders(folder) if any(path.suffix.lower() in suffixes for path in each.iterdir())
    )
    return len(list(itertools.islice(holding, 2))) == 2


def read_picture_folder(folder: Path) -> Rows:
    """Return the pictures of a folder as rows, with the folder of each as its class, or with its mask."""
    if (masked := mask_folders(folder)) is not None:
        pairs, _ = paired(*masked)
        return Rows(
            folder,
            ("image", "mask"),
            [{"image": str(path), "mask": str(mask)} for path, mask in pairs.items()],
        )
    return _by_folder(folder, pictures_in(folder), "image")


def read_sound_folder(folder: Path) -> Rows:
    """Return the sounds of a folder as rows, with the folder of each as its class."""
    return _by_folder(folder, files_in(folder, SOUND_SUFFIXES), "audio")


def _by_folder(folder: Path, files: Sequence[Path], column: str) -> Rows:
    paths = [path.relative_to(folder) for path in files]
    rows = [{column: str(path), "label": path.parts[0]} for path in paths if len(path.parts) > 1]
    return Rows(folder, (column, "label"), rows)


def read_rows(path: Path | str) -> tuple[Rows, tuple[Fault, ...]]:
    """Return all rows of a file, or of what a name stands for, and the faults of those that cannot be read.

    Raises:
        DataError: they cannot be read, or there is no row that can be.
    """
    table = read_table(path, setting="data", folder=Path.cwd())
    if not table.rows:
        fault = table.faults[0]
        if fault.reason == NOT_UTF8:
            raise DataError(path, f"no row can be used: {fault.detail}", as_utf8(str(path)))
        raise DataError(
            fault.place if not fault.line else f"{path}:{fault.line}",
            f"no row can be used; this one has {fault.detail}",
            "Correct the file.",
        )
    return Rows(Path(path), table.columns, table.rows), table.faults


def read_script(path: Path) -> Script:
    """Return a Python file, which is not run.

    Raises:
        DataError: it cannot be read, or is not Python.
    """
    try:
        script = Script(path, path.read_text(encoding="utf-8"))
        _ = script.tree
    except FileNotFoundError as error:
        scripts = (each.name for each in path.parent.glob("*.py"))
        hint = nearest_file(path.name, scripts) or "Correct the path."
        raise DataError(path, "there is no such script", hint) from error
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(path, f"cannot be read: {error}", "Name a script that can be read.") from error
    except SyntaxError as error:
        raise DataError(
            f"{path}:{error.lineno}", f"is not Python: {error.msg}", "Correct the line."
        ) from error
    return script


def no_task(rows: Rows, request: Request) -> DataError:
    """Return the error about rows that no task has a use for."""
    if (error := one_class(rows, request)) is not None:
        return error
    label = request.data(rows).get("label")
    for column in rows.columns if label is None else (label,):
        if (number := written_number(rows.values(column))) is not None:
            return DataError(
                rows.path if label is None else request.name("data.label"), *as_plain_numbers(column, number)
            )
    if label is not None:
        return DataError(
            request.name("data.label"),
            f"column '{label}' of {rows.path} has {len(rows.classes(label)):,} different values in {counted(len(rows.rows), 'row')}, "
            "which no task can learn from the other columns",
            "Name another. A class needs rows of two of them, a number to predict ten different ones, and the rows a column to tell it by.",
        )
    name_it = request.to_name("data.label")
    if not request.by_option:
        name_it = f"snugfit init FILE {name_it}"
    for plural, names_files in (("pictures", rows.names_pictures), ("sounds", rows.names_sounds)):
        if (column := next(filter(names_files, rows.columns), None)) is not None:
            return DataError(
                rows.path,
                f"column '{column}' names {plural}, and no other column was recognised as their classes",
                f"Name it: {name_it}",
            )
    return DataError(
        rows.path,
        f"none of its columns ({', '.join(rows.columns[:20])}) was recognised as something to predict from the others",
        f"Name it: {name_it}, and for texts {request.to_name('data.text')}. A class needs rows of two of them, a number "
        "to predict ten different ones.",
    )


def one_class(
    rows: Rows, request: Request, others: Sequence[str] = (), faults: Sequence[Fault] = ()
) -> DataError | None:
    """Return the error about a column of classes that has one alone, so that nobody takes what is learned without it for what was meant.

    It is the column that is named, or looks like it where no setting says what to do.

    Args:
        others: tasks that have a use for the rows without classes.
        faults: of rows that cannot be read.
    """
    named = request.data(rows).get("label")
    free = not {"model", "data"} & request.given.keys()
    column = named or (rows.named(CLASS_COLUMNS) if free and len(rows.columns) > 1 else None)
    classes = {} if column is None else rows.classes(column)
    if len(classes) != 1:
        return None
    (only,) = classes
    without = " or ".join(f"task={each}" for each in others)
    unread = (
        f"; {counted(len(faults), 'row')} cannot be read, the first for this: {faults[0].detail}"
        if faults
        else ""
    )
    return DataError(
        request.name("data.label") if named else rows.path,
        f"column '{column}' has one class alone, '{only}' in {counted(classes[only], 'row')}, and a class is told from another{unread}",
        "Give rows of two classes or more"
        + (f"; without classes, name what is to be learned: {without}." if others and not named else "."),
    )


def _without_labels(model: str) -> list[str]:
    """Return the tasks for models of a kind that read no label."""
    cards = discover().values()
    return [card.name for card in cards if card.model == model and "label" not in card.settings]


def nothing_here(here: Surroundings) -> DataError:
    """Return the error about a folder in which there is nothing that a task has a use for."""
    if here.pictures:
        return DataError(
            here.folder,
            f"holds {counted(here.pictures, 'picture')}, and no two folders of them that could be classes",
            "Put the pictures of each class into a folder named by it, or give a table with columns of paths and labels. "
            f"To learn from pictures without labels, write a recipe of task: {' or '.join(_without_labels('pictures'))} (snugfit tasks NAME).",
        )
    if here.sounds:
        return DataError(
            here.folder,
            f"holds {counted(here.sounds, 'sound')}, and no two folders of them that could be classes",
            "Put the sounds of each class into a folder named by it, or give a table with columns of paths and labels.",
        )
    if here.others:
        names = ", ".join(path.name for path in here.others[:4])
        return DataError(
            here.folder,
            f"holds {names}, which cannot be read as rows",
            "Export them as CSV, or as JSONL with one object a line.",
        )
    suffixes = ", ".join(suffix for suffix in READERS if suffix != PLAIN_TEXT)
    return DataError(
        here.folder,
        "holds nothing to train on",
        f"Put a table there ({suffixes}), a text file ({PLAIN_TEXT}), or a folder of pictures or sounds for each class; or name them: snugfit init DATA",
    )
