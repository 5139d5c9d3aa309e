"""The base of tasks on tables: the rows and the network of a recipe, the use of a trained one, and how a file of rows is recognised."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snugfit.data.splits.hold_out import columns_in
from snugfit.data.tables.table_cells import (
    as_plain_numbers,
    holds_dates,
    holds_numbers,
    is_gap,
    names_each_row,
    parsed_cell,
    written_number,
)
from snugfit.errors import SettingError
from snugfit.tasks.inference import Inference, Prediction, Row
from snugfit.tasks.recognition import Rows, columns_of
from snugfit.tasks.task import Task, loss_of
from snugfit.units import counted

if TYPE_CHECKING:
    from snugfit.core.loss_terms import Loss
    from snugfit.data.usable_rows import Part
    from snugfit.tasks.task_recipe import TaskRecipe

SETTINGS = ("columns", "categories", "label", "bad_rows", "stopping_strategy")
NETWORKS = ("tabm", "mlp")
LABELS = ("label", "labels", "target", "class", "y", "outcome", "species", "survived", "churn", "price")
_WORDS_OF_TEXTS = 5
_INFINITE = (math.inf, -math.inf)
_COLUMNS_OF_TABLES = 3
ROWS = "a file of rows with columns of numbers and of categories"


def load_table_task(recipe: TaskRecipe, empty: bool, *, classes: bool) -> Task:
    """Return a network for tables with its rows.

    Args:
        empty: the network without weights.
        classes: whether the label is a class, or else a number.
    """
    from snugfit.data.tables.table_rows import TableSettings, collate, load_table
    from snugfit.models.bundle import NETWORK
    from snugfit.models.table_network import TableNetwork, network_settings
    from snugfit.step.build import Material

    settings = network_settings(recipe.model, recipe.folder)
    data = recipe.data
    table = load_table(
        TableSettings(
            train=data.rows,
            validation=data.held_out,
            columns=None if data.columns is None else tuple(data.columns),
            categories=tuple(data.categories or ()),
            label=data.label,
            classes=classes,
            bins=settings.bins,
            bad_rows=data.bad_rows,
            seed=recipe.train.seed,
            leaks=data.leak_settings,
        ),
        folder=recipe.folder,
    )
    network = TableNetwork(
        settings=settings,
        edges=table.format.edges,
        sizes=table.format.sizes,
        classes=len(table.labels),
        middle=table.middle,
        spread=table.spread,
    )
    return Task(
        Material(
            network.make(recipe.train.seed, empty=empty),
            table.train,
            table.validation,
            _loss(recipe, network),
            collate,
        ),
        meta={
            "task": recipe.task,
            "labels": list(table.labels),
            "label_column": data.label,
            "table": table.format.as_dict(),
            NETWORK: network.as_dict(),
            "numerics": recipe.as_dict()["plan"]["numerics"],
        },
        data=table.report.as_dict(),
        fingerprints=table.fingerprints,
        messages=table.report.warnings,
        example_rows=table.example_rows,
    )


def read_table_rows(recipe: TaskRecipe, *, classes: bool) -> Part:
    """Return the rows with a label as they stand in the file: each fold fits the columns' format on its own training rows."""
    from snugfit.data.sources import check_columns
    from snugfit.data.tables.table_rows import read_labelled
    from snugfit.data.usable_rows import part_of_records

    data = recipe.data
    read = read_labelled(data.rows, "data.train", data.label, classes, recipe.folder)
    columns = data.columns or [name for name in read.table.columns if name != data.label]
    check_columns(read.table, {"data.columns": columns})
    records = [
        {column: read.table.rows[row].get(column) for column in (*columns, data.label)}
        for row in read.row_indices
    ]
    part = part_of_records(read.table, read.row_indices, [*map(str, read.labels)], records)
    return replace(part, faults=read.faults)


def _loss(recipe: TaskRecipe, network: Any) -> str | Loss:
    """Return the recipe's loss, for each member of a network that has several, and in units of what is learned.

    Raises:
        SettingError: a network of several members is to learn by a loss of the user's own.
    """
    from snugfit.models.table_network import MemberCrossEntropy, MemberSquaredError

    members = network.settings.network == "tabm"
    if recipe.loss == "cross_entropy" and network.classes:
        return MemberCrossEntropy() if members else recipe.loss
    if recipe.loss == "mse" and not network.classes:
        return MemberSquaredError(network.spread)
    if members:
        raise SettingError(
            "loss",
            f"{recipe.loss} is not of each member of {recipe.model}, which learn by themselves",
            f"Leave it out ({'cross_entropy' if network.classes else 'mse'}), or take model: mlp.",
        )
    return loss_of(recipe)


def table_inference(
    meta: Mapping[str, Any],
    decode: Callable[[Any, Sequence[Any]], list[Prediction]],
    columns: tuple[str, ...],
    metrics: tuple[str, ...],
) -> Inference:
    """Return the use of a network for tables, by what it was saved with."""
    from snugfit.core.losses import cross_entropy
    from snugfit.data.files.file_rows import FileRows, MapStyle
    from snugfit.data.tables.table_format import TableFormat
    from snugfit.data.tables.table_rows import collate, examples_of, load_table_rows
    from snugfit.models.bundle import NETWORK
    from snugfit.models.table_network import MemberSquaredError

    table_format, labels = TableFormat.of(meta["table"]), tuple(meta["labels"])

    def encoded(rows: Sequence[Row]) -> MapStyle:
        return examples_of(rows, table_format)

    def read(source: str, /, *, labelled: bool, bad_rows: str) -> FileRows:
        return load_table_rows(
            source,
            table_format,
            label=meta["label_column"] if labelled else None,
            labels=labels if labelled else (),
            bad_rows=bad_rows,
            folder=Path.cwd(),
        )

    return Inference(
        encode=encoded,
        collate=collate,
        decode=decode,
        columns=columns,
        read=read,
        classes=labels,
        counted="" if labels else "numbers",
        loss=cross_entropy if labels else MemberSquaredError(meta[NETWORK]["spread"]),
        metrics=metrics,
    )


@dataclass(frozen=True)
class Columns:
    """The columns of a file that can be learned from, those that cannot, and those that rows are held out by.

    Args:
        notes: of those that cannot for how they are written, and could otherwise.
    """

    useful: Sequence[str]
    useless: Sequence[str] = ()
    held_out_by: Sequence[str] = ()
    notes: Sequence[str] = ()

    @property
    def counted(self) -> str:
        """Their number, in words."""
        return counted(len(self.useful), "column")

    @property
    def settings(self) -> dict[str, Any]:
        """Settings of `data` that name them; none where they are all but the label."""
        return {"columns": tuple(self.useful)} if self.useless else {}

    @property
    def comments(self) -> dict[str, str]:
        """A comment of that setting."""
        if not self.useless:
            return {}
        reasons = [f"{', '.join(self.useless)}, of which nothing can be learned"]
        if self.held_out_by:
            reasons.append(f"without {', '.join(self.held_out_by)}, by which rows are held out")
        return {"data.columns": f"without {', and '.join(reasons)}"}


def usable_columns(rows: Rows, label: str, data: Mapping[str, Any]) -> Columns:
    """Return the columns to learn from: neither dates, texts and numbers that only count the rows, nor those that rows are held out by."""
    if given := data.get("columns"):
        return Columns(columns_of(given))
    by = columns_in(data.get("validation"))
    others = [column for column in rows.columns if column not in (label, *by)]
    useful = [column for column in others if _is_useful(rows, column)]
    useless = [column for column in others if column not in useful]
    return Columns(useful, useless, by, [*filter(None, (_note(rows, column) for column in useless))])


def _note(rows: Rows, column: str) -> str | None:
    """Return what to do for a column that is left out for its decimal commas or separated thousands; None for another."""
    if (number := written_number(rows.values(column))) is None:
        return None
    what, remedy = as_plain_numbers(column, number)
    return f"{what}, and is left out. {remedy}"


def _is_useful(rows: Rows, column: str) -> bool:
    cells = [row.get(column) for row in rows.rows]
    if not _varies(rows, column):
        return False
    if holds_numbers(cells):
        return not rows.counts_rows(column)
    if written_number(rows.values(column)) is not None:
        return False
    return not (holds_dates(cells) or _is_prose(rows, column) or names_each_row(cells))


def without_faults(rows: Rows, label: str, columns: Columns) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a setting of `data` that leaves rows out where there are some without a label or with an infinite number, and a comment of it."""
    gaps = sum(is_gap(row.get(label)) for row in rows.rows)
    numbers = [
        each for each in (label, *columns.useful) if holds_numbers([row.get(each) for row in rows.rows])
    ]
    infinite = sum(any(parsed_cell(row.get(each)) in _INFINITE for each in numbers) for row in rows.rows)
    counts = ((gaps, f"without a '{label}' to learn"), (infinite, "with an infinite number"))
    words = [f"{counted(count, 'row')} {what}" for count, what in counts if count]
    if not words:
        return {}, {}
    return {"bad_rows": "skip"}, {"data.bad_rows": f"{', '.join(words)}; fail ends the run instead"}


def label_comment(meaning: str, *, named: bool) -> str:
    """Return a comment of `data.label`; where nothing but its place speaks for a column, it says how another is named."""
    return (
        meaning
        if named
        else f"{meaning}; the last column: another is named by snugfit init … data.label=COLUMN"
    )


def score_of(rows: Rows, label: str, columns: Columns, *, named: bool) -> float:
    """Return how likely rows are a table, beside texts of which a class is to be told.

    Args:
        named: whether the label is known by its name.
    """
    prose = [column for column in rows.columns if column != label and rows.is_prose(column)]
    long = any(rows.words(column) >= _WORDS_OF_TEXTS for column in prose)
    likely = len(columns.useful) >= _COLUMNS_OF_TABLES and not long
    return (0.87 if likely else 0.7) - (0 if named else 0.05)


def _varies(rows: Rows, column: str) -> bool:
    return len(rows.classes(column)) > 1


def _is_prose(rows: Rows, column: str) -> bool:
    return (
        rows.names_pictures(column)
        or rows.names_sounds(column)
        or (rows.is_prose(column) and statistics.median(map(len, rows.classes(column))) > 30)
    )
