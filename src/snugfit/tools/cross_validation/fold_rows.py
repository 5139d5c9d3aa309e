"""The rows that a recipe's folds are made of: read and checked by its task's own code, and dealt out again as files."""

from __future__ import annotations

import json
import os
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snugfit.data.bad_rows import settle
from snugfit.data.columns import check_columns
from snugfit.data.examples import ORIGIN
from snugfit.data.label_sets import LabelSets
from snugfit.data.masks import read_masks
from snugfit.data.path_rows import read_files
from snugfit.data.picture_files import PICTURE_FILES
from snugfit.data.sound_files import SOUND_FILES
from snugfit.data.sources import read_table
from snugfit.data.tables import read_labelled
from snugfit.data.usable_rows import Part, read_part
from snugfit.errors import DataError, SettingError
from snugfit.system.user_objects import is_python_path
from snugfit.tasks import find
from snugfit.tasks.python import training_rows
from snugfit.tasks.recognition import columns_of

if TYPE_CHECKING:
    from snugfit.recipe import Recipe
    from snugfit.tools.cross_validation.result import Fold

SIDES = ("train", "validation")
COLUMNS = ("pair", "positive", "negative", "label", "label_columns", "completion", "target")
"""Settings of `data` that name columns, besides `text`."""


@dataclass(frozen=True)
class FoldRows:
    """The usable rows of `data.train`, in its order.

    `records` are the columns that the task reads, None where the rows are the objects of a Python data set; `contents` are what
    two rows must not share across a fold. `sha256` is that of the source, empty where it has none. `classes` are those of all rows, where
    a fold would have those of its own.
    """

    count: int
    sha256: str
    labels: Sequence[Hashable] | None
    groups: Sequence[Hashable] | None
    records: Sequence[Mapping[str, Any]] | None = None
    contents: Sequence[Hashable] | None = None
    notes: tuple[str, ...] = ()
    classes: tuple[str, ...] | None = None

    def write(self, fold: Fold, folder: Path) -> dict[str, str]:
        """Write both sides of a fold as JSON Lines into `folder`; returns the settings of `data` that name them.

        Raises:
            DataError: they cannot be written.
        """
        assert self.records is not None
        files = {}
        for side, rows in zip(SIDES, (fold.training, fold.validation), strict=True):
            path = folder / f"{side}.jsonl"
            lines = (json.dumps(self.records[row], default=_plain) for row in rows)
            try:
                path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            except OSError as error:
                raise DataError(
                    "data",
                    f"{path} cannot be written: {error.strerror}",
                    "Free space, or make the folder writable.",
                ) from error
            files[side] = str(path)
        return files


def fold_rows(recipe: Recipe, group_by: Sequence[str] = (), *, labelled: bool = False) -> FoldRows:
    """Read the rows of `data.train` as the recipe's task does; nothing is fitted on them.

    Args:
        group_by: columns; rows that are equal in all of them are one group.
        labelled: the labels are needed, also where the task does not read them.
    Raises:
        DataError, SettingError: the rows cannot be used, or have no such column.
    """
    card = find(recipe.task)
    if not isinstance(recipe.data.rows, str):
        raise SettingError(
            "data.train",
            "names several sources, and folds are dealt out of one",
            "Name one, or join their rows in a file.",
        )
    if card.model == "series":
        raise SettingError(
            "task",
            f"{card.name} is learned from the past, and folds that are drawn at random hold out steps before those to train on",
            "Validate by time: data.validation: 0.2 scores every horizon in the last fifth of each series.",
        )
    if card.own_code:
        return _objects(recipe, group_by, labelled)
    if card.model == "masks":
        return _masks(recipe, group_by)
    if card.model == "table":
        return _table(recipe, group_by)
    if card.model == "own":
        return _as_they_stand(recipe, group_by)
    return _texts(recipe, group_by) if card.reads_texts else _files(recipe, group_by)


def _texts(recipe: Recipe, group_by: Sequence[str]) -> FoldRows:
    data = recipe.data
    card = find(recipe.task)
    (source,) = data.train_sources
    if source.lower().endswith(".txt") and not is_python_path(source):
        raise DataError(
            "data.train",
            f"{source} is one text, which has no rows to hold out",
            "Give a JSONL or CSV file with a text in each row.",
        )
    label = data.label if card.classes else None
    if card.read_rows is not None:
        part = card.read_rows(recipe)
    else:
        pair = data.pair if "pair" in card.settings else None
        part = read_part(data.rows, "data.train", data.text, label, None, recipe.folder, pair=pair)
    notes = _settled(part, recipe)
    columns = part.columns
    if columns is None:
        named = {name: getattr(data, name) for name in COLUMNS if name in card.settings}
        if named.get("label_columns"):
            del named["label"]
        others = {f"data.{name}": columns_of(asked) for name, asked in named.items() if asked is not None}
        check_columns(part.table, others)
        columns = (*data.text, *(name for asked in others.values() for name in asked))
    records = [{column: part.table.rows[row].get(column) for column in columns} for row in part.row_indices]
    dealt = _dealt(part, records, part.contents, notes, group_by, labelled=card.classes)
    if "label_columns" in card.settings and data.label_columns is None:
        return replace(dealt, classes=LabelSets(names=data.classes or ()).names_in(part.labels))
    return replace(dealt, classes=part.classes)


def _files(recipe: Recipe, group_by: Sequence[str]) -> FoldRows:
    data = recipe.data
    kind, column = (
        (SOUND_FILES, data.audio) if find(recipe.task).model == "sounds" else (PICTURE_FILES, data.image)
    )
    sets = LabelSets(data.label, data.separator, data.label_columns or (), data.classes or ())
    card = find(recipe.task)
    one, labelled = card.classes, "label" in card.settings
    label = data.label if one else sets if labelled else None
    part, digests = read_files(
        data.rows, "data.train", kind, column=column, label=label, folder=recipe.folder
    )
    notes = _settled(part, recipe)
    records: list[dict[str, Any]] = []
    for row, path, own in zip(part.row_indices, part.texts, part.labels, strict=True):
        cells = {name: part.table.rows[row][name] for name in data.label_columns or ()}
        if labelled and not cells:
            cells = {data.label: own}
        records.append({column: os.path.abspath(path), **cells})
    dealt = _dealt(part, records, digests, notes, group_by, labelled=one)
    return dealt if one or not labelled else replace(dealt, classes=sets.names_in(part.labels))


def _masks(recipe: Recipe, group_by: Sequence[str]) -> FoldRows:
    data = recipe.data
    loaded = read_masks(
        data.rows,
        "data.train",
        image=data.image,
        label=data.label,
        folder=recipe.folder,
        classes=None if data.classes is None else len(data.classes),
    )
    records = [
        {data.image: os.path.abspath(path), data.label: os.path.abspath(mask)}
        for path, mask in zip(loaded.part.texts, loaded.masks, strict=True)
    ]
    notes = _settled(loaded.part, recipe)
    dealt = _dealt(loaded.part, records, loaded.digests, notes, group_by, labelled=False)
    return replace(dealt, classes=data.classes or loaded.numbers)


def _table(recipe: Recipe, group_by: Sequence[str]) -> FoldRows:
    """Return the rows with a label as they stand in the file: each fold fits the columns' format on its own training rows."""
    data, classes = recipe.data, find(recipe.task).classes
    part = read_labelled(data.rows, "data.train", data.label, classes, recipe.folder)
    columns = data.columns or [name for name in part.table.columns if name != data.label]
    check_columns(part.table, {"data.columns": columns})
    records = [
        {column: part.table.rows[row].get(column) for column in (*columns, data.label)}
        for row in part.row_indices
    ]
    contents = [json.dumps(record, default=_plain) for record in records]
    of_texts = Part(part.table, part.row_indices, contents, [*map(str, part.labels)], part.faults)
    return _dealt(of_texts, records, contents, _settled(of_texts, recipe), group_by, labelled=classes)


def _as_they_stand(recipe: Recipe, group_by: Sequence[str]) -> FoldRows:
    """Return the rows of a file with all their columns, for a task that alone knows which it reads, and which rows it cannot use."""
    table = read_table(recipe.data.rows, setting="data.train", folder=recipe.folder)
    classes = find(recipe.task).classes
    contents = [json.dumps(row, default=_plain) for row in table.rows]
    labels = [str(row.get(recipe.data.label)) for row in table.rows]
    part = Part(table, [*range(len(table.rows))], contents, labels, list(table.faults))
    return _dealt(part, table.rows, contents, _settled(part, recipe), group_by, labelled=classes)


def _settled(part: Part, recipe: Recipe) -> list[str]:
    """Treat the faults of rows by the recipe's policy; return what is to be told of rows that are in no fold.

    Raises:
        DataError: there are faults and the policy is 'fail', or no row is left.
    """
    skipped = settle(part.faults, recipe.data.bad_rows)
    if not part.row_indices:
        raise DataError(
            "data", f"no usable row is left in {part.table.source}", "Correct the rows, or name another file."
        )
    reasons = ", ".join(f"{reason} ({count})" for reason, count in skipped.items())
    return [_left_out(recipe), *([f"rows that cannot be used are in no fold: {reasons}."] if skipped else [])]


def _dealt(
    part: Part,
    records: Sequence[Mapping[str, Any]],
    contents: Sequence[Hashable],
    notes: Sequence[str],
    group_by: Sequence[str],
    *,
    labelled: bool,
) -> FoldRows:
    origins = [[part.table.source, row, part.table.lines[row]] for row in part.row_indices]
    return FoldRows(
        count=len(part.row_indices),
        sha256=part.table.sha256,
        labels=part.labels if labelled else None,
        groups=_groups(part, group_by),
        records=[{**record, ORIGIN: origin} for record, origin in zip(records, origins, strict=True)],
        contents=contents,
        notes=tuple(filter(None, notes)),
    )


def _groups(part: Part, group_by: Sequence[str]) -> list[Hashable] | None:
    if not group_by:
        return None
    check_columns(part.table, {"--groups": group_by})
    groups: list[Hashable] = []
    for row in part.row_indices:
        values = [part.table.rows[row].get(column) for column in group_by]
        if any(value is None or value == "" for value in values):
            raise DataError(
                "--groups",
                f"{part.table.source}:{part.table.lines[row]}: the row has no {' or '.join(group_by)}, so it is of no "
                "group",
                "Fill it, or leave the row out.",
            )
        groups.append(json.dumps(values, default=_plain))
    return groups


def _objects(recipe: Recipe, group_by: Sequence[str], labelled: bool) -> FoldRows:
    rows = training_rows(recipe)
    count = len(rows)
    groups = None
    if group_by:
        groups = [
            json.dumps([_column(rows[row], name) for name in group_by], default=_plain)
            for row in range(count)
        ]
    notes = (
        _left_out(recipe),
        f"all rows are made by {' and '.join(recipe.data.train_sources)} before they are dealt into folds: what it fits on them, such as a mean to subtract, "
        "has seen the held-out rows. Fit it in the model, or on each row alone.",
        "rows of a Python data set are not compared with each other: put copies of one row into one group with --groups.",
    )
    return FoldRows(
        count=count,
        sha256="",
        labels=[_label(rows[row]) for row in range(count)] if labelled else None,
        groups=groups,
        notes=tuple(filter(None, notes)),
    )


def _left_out(recipe: Recipe) -> str:
    own = recipe.data.sources[len(recipe.data.train_sources) :]
    return (
        f"data.validation ({' and '.join(own)}) is not used: it stays unseen, to score the final model."
        if own
        else ""
    )


def _label(row: Any) -> Hashable:
    if isinstance(row, Mapping):
        return _plain(_column(row, "labels"))
    if isinstance(row, (tuple, list)) and len(row) > 1:
        return _plain(row[1])
    raise SettingError(
        "stratified",
        f"a row is a {type(row).__name__}, not (inputs, label) or a mapping with labels",
        "Ask for --no-stratified.",
    )


def _column(row: Any, name: str) -> Any:
    if not isinstance(row, Mapping) or name not in row:
        shape = (
            f"has {', '.join(map(str, row))}" if isinstance(row, Mapping) else f"is a {type(row).__name__}"
        )
        raise SettingError(f"'{name}'", f"a row {shape}", f"Let each row be a mapping with '{name}'.")
    return row[name]


def _plain(value: Any) -> Hashable:
    """Return a scalar of NumPy or torch as Python's own; text and numbers as they are.

    Raises:
        DataError: it is neither.
    """
    scalar = value.tolist() if hasattr(value, "tolist") else value
    if scalar is not None and not isinstance(scalar, (str, int, float)):
        raise DataError(
            "data.train",
            f"{scalar!r:.60} is neither text nor a number, so rows cannot be dealt by it",
            "Name another column.",
        )
    return scalar
