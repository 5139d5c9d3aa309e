"""The rows that a recipe's folds are made of: read and checked by its task's own code, and dealt out again as files."""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snugfit.data.bad_rows import Fault, check_rows_left, settle
from snugfit.data.examples import ORIGIN, Examples
from snugfit.data.sources import check_columns, read_table
from snugfit.data.splits.sides import groups_of, moments_of
from snugfit.data.usable_rows import Part, part_of_records, read_part, scalar
from snugfit.errors import DataError, SettingError
from snugfit.system.user_objects import is_python_path
from snugfit.tasks import find
from snugfit.tasks.python import cells_of, training_rows
from snugfit.tasks.recognition import columns_of

if TYPE_CHECKING:
    from snugfit.recipe import Recipe
    from snugfit.tasks.task_card import Card
    from snugfit.tools.cross_validation.result import Fold

SIDES = ("train", "validation")
GROUPS, TIME = "--groups", "--time"
COLUMNS = ("pair", "positive", "negative", "label", "label_columns", "completion", "target")
"""Settings of `data` that name columns, besides `text`."""


@dataclass(frozen=True)
class FoldRows:
    """The usable rows of `data.train`, in its order.

    `records` are the columns that the task reads, None where the rows are the objects of a Python data set; `contents` are what
    two rows must not share across a fold. `sha256` is that of the source, empty where it has none. `classes` are those of all rows, where
    a fold would have those of its own. `times` are those by which folds follow one another, `left_out` the rows that cannot
    be used.
    """

    count: int
    sha256: str
    labels: Sequence[Hashable] | None
    groups: Sequence[Hashable] | None
    records: Sequence[Mapping[str, Any]] | None = None
    contents: Sequence[Hashable] | None = None
    notes: tuple[str, ...] = ()
    classes: tuple[str, ...] | None = None
    times: Sequence[float] | None = None
    left_out: tuple[Fault, ...] = ()

    def write(self, fold: Fold, folder: Path) -> dict[str, str]:
        """Write both sides of a fold as JSON Lines into `folder`; returns the settings of `data` that name them.

        Raises:
            DataError: they cannot be written.
        """
        assert self.records is not None
        files = {}
        for side, rows in zip(SIDES, (fold.training, fold.validation), strict=True):
            path = folder / f"{side}.jsonl"
            lines = (json.dumps(self.records[row], default=scalar) for row in rows)
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


def fold_rows(
    recipe: Recipe, group_by: Sequence[str] = (), *, labelled: bool = False, time: str | None = None
) -> FoldRows:
    """Read the rows of `data.train` as the recipe's task does; nothing is fitted on them.

    Args:
        group_by: columns; rows that are equal in all of them are one group.
        labelled: the labels are needed, also where the task does not read them.
        time: a column of dates or numbers, by which folds follow one another.
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
    if card.own_code:
        return _objects(recipe, group_by, labelled, time)
    part = _usable(recipe, card)
    skipped = settle(part.faults, recipe.data.bad_rows)
    check_rows_left(part.row_indices, part.table.source)
    reasons = ", ".join(f"{reason} ({count})" for reason, count in skipped.items())
    notes = [_left_out(recipe), f"rows that cannot be used are in no fold: {reasons}." if skipped else ""]
    records = _written(part, recipe, card) if part.records is None else part.records
    if "columns" in card.settings and recipe.data.columns is None:
        # of values that are new in a held-out fold nothing is learned
        by = {*group_by, time}
        records = [{name: cell for name, cell in record.items() if name not in by} for record in records]
    if (balance := recipe.data.balance) is not None:
        check_columns(part.table, {"data.balance": [balance]})
        cells = (part.table.rows[row].get(balance) for row in part.row_indices)
        records = [{balance: cell, **record} for cell, record in zip(cells, records, strict=True)]
    # a row that is spoken of by its name has no line
    origins = [[part.table.source, row, part.table.place(row)[1]] for row in part.row_indices]
    examples = Examples.of(part.row_indices, part.table, part.row_indices)
    return FoldRows(
        count=len(part.row_indices),
        sha256=part.table.sha256,
        labels=part.labels if card.classes else None,
        groups=groups_of(examples, group_by, GROUPS) if group_by else None,
        times=None if time is None else moments_of(examples, time, TIME),
        records=[{**record, ORIGIN: origin} for record, origin in zip(records, origins, strict=True)],
        contents=part.contents,
        notes=tuple(filter(None, notes)),
        classes=part.classes,
        left_out=tuple(part.faults),
    )


def _usable(recipe: Recipe, card: Card) -> Part:
    """Return the rows of a recipe that can be used, and the faults of the others."""
    data = recipe.data
    (source,) = data.train_sources
    if data.stream is not None:
        raise DataError(
            "data.stream", f"reads {source} as a stream, of which no folds can be made", "Leave it out."
        )
    if card.reads_texts and source.lower().endswith(".txt") and not is_python_path(source):
        raise DataError(
            "data.train",
            f"{source} is one text, which has no rows to hold out",
            "Give a JSONL or CSV file with a text in each row.",
        )
    if card.read_rows is not None:
        return card.read_rows(recipe)
    if card.reads_texts:
        label, pair = data.label if card.classes else None, data.pair if "pair" in card.settings else None
        return read_part(data.rows, "data.train", data.text, label, None, recipe.folder, pair=pair)
    # a task that alone knows which columns it reads, and which rows it cannot use
    table = read_table(data.rows, setting="data.train", folder=recipe.folder)
    labels = [str(row.get(data.label)) for row in table.rows]
    return part_of_records(table, [*range(len(table.rows))], labels, table.rows)


def _written(part: Part, recipe: Recipe, card: Card) -> list[dict[str, Any]]:
    """Return the cells of the columns that a task reads of each row."""
    data, columns = recipe.data, part.columns
    if columns is None:
        named = {name: getattr(data, name) for name in COLUMNS if name in card.settings}
        if named.get("label_columns"):
            del named["label"]
        others = {f"data.{name}": columns_of(asked) for name, asked in named.items() if asked is not None}
        check_columns(part.table, others)
        columns = (*data.text, *(name for asked in others.values() for name in asked))
    return [{column: part.table.rows[row].get(column) for column in columns} for row in part.row_indices]


def _objects(recipe: Recipe, group_by: Sequence[str], labelled: bool, time: str | None) -> FoldRows:
    rows = training_rows(recipe)
    (source,) = recipe.data.train_sources
    count = len(rows)
    groups, times = None, None
    if group_by:
        groups = groups_of(cells_of(source, rows, group_by, GROUPS), group_by, GROUPS)
    if time is not None:
        times = moments_of(cells_of(source, rows, [time], TIME), time, TIME)
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
        times=times,
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
        if "labels" not in row:
            raise SettingError(
                "'labels'",
                f"a row has {', '.join(map(str, row))}",
                "Let each row be a mapping with 'labels'.",
            )
        return scalar(row["labels"])
    if isinstance(row, (tuple, list)) and len(row) > 1:
        return scalar(row[1])
    raise SettingError(
        "stratified",
        f"a row is a {type(row).__name__}, not (inputs, label) or a mapping with labels",
        "Ask for --no-stratified.",
    )
