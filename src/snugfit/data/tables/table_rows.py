"""Rows of numbers and categories: read, split, and made into examples by what the rows to train on look like."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snugfit.data.bad_rows import BadRow, Fault, check_policy, check_rows_left, label_of, settle
from snugfit.data.examples import ORIGIN, Columns, Examples
from snugfit.data.files.file_rows import FileRows
from snugfit.data.labels.class_names import check_classes, label_warnings, sort_labels
from snugfit.data.labels.target_numbers import check_differences, check_size
from snugfit.data.report import DataReport
from snugfit.data.sources import RowSource, Table, check_columns, fingerprints_of, read_table
from snugfit.data.splits.hold_out import SHARES, HoldOut
from snugfit.data.splits.leaks import Inputs, LeakSettings
from snugfit.data.splits.near_duplicates import near_rows
from snugfit.data.splits.sides import Validation, check_validation, make_sides
from snugfit.data.tables.table_cells import parsed_cell
from snugfit.data.tables.table_format import TableFormat, fit_format, label_number
from snugfit.errors import DataError, SettingError, nearest

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor

NUMBERS, CATEGORIES = "numbers", "categories"
"""Inputs of a model: float32 of shape (rows, columns), and int64 of that shape."""

_EXAMPLE_ROWS = 32


@dataclass(frozen=True)
class TableSettings:
    """The `data` part of a recipe for tables.

    Args:
        columns: to learn from; None for all but the label and those that rows are held out by, whose values on the other side are new.
        categories: those of them that hold categories though they look like numbers.
        classes: whether the label is a class, so that a fraction to validate on is stratified by it; else a number.
        bins: of each column of numbers.
    """

    train: RowSource
    validation: Validation = 0.1
    columns: tuple[str, ...] | None = None
    categories: tuple[str, ...] = ()
    label: str = "label"
    classes: bool = True
    bins: int = 16
    bad_rows: str = "fail"
    seed: int = 0
    leaks: LeakSettings = field(default_factory=LeakSettings)

    def __post_init__(self) -> None:
        check_policy(self.bad_rows)
        check_validation(self.validation)


class TableRows(Columns):
    """Rows as examples: `numbers`, `categories`, and `labels` where they have one.

    Args:
        indices: of the rows in the table.
    """

    def __init__(self, rows: Examples, indices: Sequence[int], tensors: Mapping[str, Tensor]) -> None:
        super().__init__(rows, tensors)
        self.indices = indices


@dataclass(frozen=True)
class TableData:
    """Examples to train and validate on, the format of their columns, and `labels`: names of classes, none where the label is a number.

    `middle` and `spread` are the mean and the deviation of a number to be learned, over the rows to train on.
    """

    train: TableRows
    validation: TableRows | None
    format: TableFormat
    labels: tuple[str, ...]
    middle: float
    spread: float
    report: DataReport
    fingerprints: Mapping[str, str]
    example_rows: list[dict[str, Any]]


@dataclass(frozen=True)
class LabelledRows:
    """The rows of a table that have a label, the labels, and the faults of the others."""

    table: Table
    row_indices: list[int]
    labels: list[Any]
    faults: list[Fault]


def load_table(settings: TableSettings, *, folder: Path | None = None) -> TableData:
    """Read, split, and fit the columns' format on the rows to train on alone.

    Raises:
        DataError: a source or a column cannot be used, rows are faulty and the policy is 'fail', or too little is left.
        SettingError: columns that contradict each other.
    """
    label = settings.label
    part = read_labelled(settings.train, "data.train", label, settings.classes, folder)
    columns = _columns(part.table, settings)
    held_out = None
    if settings.validation is not None and not isinstance(settings.validation, SHARES):
        held_out = read_labelled(settings.validation, "data.validation", label, settings.classes, folder)
        check_columns(held_out.table, {"data.columns": columns})
    names: tuple[str, ...] = ()
    if settings.classes:
        names = sort_labels(set(part.labels))
        check_classes(names, part.table.source, label)
    read = [part] if held_out is None else [part, held_out]
    sides = make_sides(
        [Examples.of(each.labels, each.table, each.row_indices) for each in read],
        settings.validation,
        settings.seed,
        inputs=_inputs(read, columns),
        leaks=settings.leaks,
        classes=part.labels if settings.classes else None,
    )
    places, aside = sides.places, sides.shown if held_out is None and len(sides.validation) else ()
    trained = [part.table.rows[part.row_indices[place]] for place in places]
    if not trained:
        settle(part.faults, settings.bad_rows)
    check_rows_left(trained, part.table.source)
    table_format = fit_format(trained, columns, settings.categories, settings.bins)
    faults = list(part.faults)
    train = _encoded(part, places, table_format, names, faults)
    if held_out is None:
        validation, source = _encoded(part, aside, table_format, names, faults), part
    else:
        faults += held_out.faults
        validation, source = (
            _encoded(held_out, range(len(held_out.labels)), table_format, names, faults),
            held_out,
        )
    skipped = settle(sorted(faults, key=lambda fault: (fault.source, fault.line)), settings.bad_rows)
    for rows, of in ((train, part), *([(validation, held_out)] if held_out else [])):
        check_rows_left(rows, of.table.source)
    if not names:
        of_row = dict(zip(part.row_indices, part.labels, strict=True))
        check_differences([of_row[row] for row in train.indices], label)
    numbers = train.tensors["labels"].double()
    warned = label_warnings(names, len(train), label) if names else []
    if not len(validation):
        source, shown = part, train
    else:
        shown = validation
    return TableData(
        train=train,
        validation=validation if len(validation) else None,
        format=table_format,
        labels=names,
        middle=0.0 if names else float(numbers.mean()),
        spread=1.0 if names else float(numbers.std(correction=0)),
        report=_report(
            train,
            validation,
            names,
            skipped,
            (*warned, *sides.warnings, *_new_categories(validation, table_format)),
        ),
        fingerprints=fingerprints_of(each.table for each in (part, held_out) if each is not None),
        example_rows=[table_format.plain(source.table.rows[row]) for row in shown.indices[:_EXAMPLE_ROWS]],
    )


def _inputs(parts: Sequence[LabelledRows], columns: Sequence[str]) -> Inputs:
    """Return the cells that rows are learned from."""

    def cells(part: int) -> list[tuple[Any, ...]]:
        rows = parts[part].table.rows
        return [tuple(rows[row].get(column) for column in columns) for row in parts[part].row_indices]

    def same(part: int) -> list[Hashable]:
        return [tuple(map(parsed_cell, row)) for row in cells(part)]

    return Inputs("rows", same, cells, near_rows)


def load_table_rows(
    source: RowSource,
    table_format: TableFormat,
    *,
    label: str | None,
    labels: Sequence[str],
    bad_rows: str,
    folder: Path | None = None,
) -> FileRows:
    """Read one source to evaluate on (with `label`) or to predict (without), in its order.

    Args:
        labels: names of the classes that the model knows; none where the label is a number.
    Raises:
        DataError: as for `load_table`; a class that the model does not know is a fault of its row.
    """
    check_policy(bad_rows)
    if label is None:
        table = read_table(source, setting="data", folder=folder)
        part = LabelledRows(table, list(range(len(table.rows))), [], list(table.faults))
    else:
        part = read_labelled(source, "data", label, bool(labels), folder)
    check_columns(part.table, {"data.columns": table_format.columns})
    faults = list(part.faults)
    rows = _encoded(part, range(len(part.row_indices)), table_format, labels, faults)
    skipped = settle(part.table.in_order(faults), bad_rows)
    check_rows_left(rows, part.table.source)
    return FileRows(
        examples=rows,
        rows=[part.table.rows[row] for row in rows.indices],
        lines=[part.table.lines[row] for row in rows.indices],
        columns=part.table.columns,
        collate=collate,
        report=_report(None, rows, labels, skipped, _new_categories(rows, table_format)),
        fingerprints=part.table.fingerprints,
    )


def read_labelled(
    source: RowSource, setting: str, label: str, classes: bool, folder: Path | None = None
) -> LabelledRows:
    """Return the rows of a source that have a label: the name of a class, or a number."""
    table = read_table(source, setting=setting, folder=folder)
    if table.rows:
        check_columns(table, {"data.label": [label]})
    part = LabelledRows(table, [], [], list(table.faults))
    for index, row in enumerate(table.rows):
        try:
            value = label_of(row, label)[1] if classes else check_size(label_number(label, row), label)
        except BadRow as bad:
            part.faults.append(table.fault(index, bad))
            continue
        part.row_indices.append(index)
        part.labels.append(value)
    return part


def examples_of(rows: Sequence[Mapping[str, Any]], table_format: TableFormat) -> TableRows:
    """Return the examples of rows that a program gives, without labels.

    Raises:
        BadRow: one cannot be used.
    """
    numbers, codes, faults = table_format.encode(rows)
    if faults:
        raise faults[min(faults)]
    places = list(range(len(rows)))
    return TableRows(Examples(places, "the rows", places), places, _tensors(numbers, codes))


def collate(examples: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """Return a batch: `numbers` and `categories`, each of shape (rows, columns), and `labels`, shape (rows,), where there are any."""
    import torch

    return {name: torch.stack([example[name] for example in examples]) for name in examples[0]}


def _columns(table: Table, settings: TableSettings) -> tuple[str, ...]:
    """Return the columns to learn from.

    Raises:
        DataError: one is not there.
        SettingError: one is the label, or is no column to learn from.
    """
    columns = settings.columns
    if columns is None:
        held_out = settings.validation
        by = (*held_out.group, held_out.time) if isinstance(held_out, HoldOut) else ()
        columns = tuple(name for name in table.columns if name not in (settings.label, ORIGIN, *by))
    check_columns(table, {"data.label": [settings.label], "data.columns": columns})
    if not columns:
        raise DataError(
            "data.columns", f"{table.source} has a label and no other column", "Name another source."
        )
    for name in settings.categories:
        if name not in columns:
            raise SettingError(
                "data.categories", f"'{name}' is no column to learn from", nearest(name, columns)
            )
    return columns


def _encoded(
    part: LabelledRows,
    places: Sequence[int],
    table_format: TableFormat,
    names: Sequence[str],
    faults: list[Fault],
) -> TableRows:
    """Return some rows as examples, with their labels where they have any; faults of others are added to those there."""
    import torch

    indices = [part.row_indices[place] for place in places]
    numbers, codes, bad = table_format.encode([part.table.rows[index] for index in indices])
    labels = [part.labels[place] for place in places] if part.labels else []
    if names and labels:
        number = {name: place for place, name in enumerate(names)}
        for at, label in enumerate(labels):
            if label not in number:
                fault = BadRow(
                    "unknown label", f"the label '{label}' was not trained. {nearest(label, names)}"
                )
                bad.setdefault(at, fault)
        labels = [number.get(label, 0) for label in labels]
    faults += [part.table.fault(indices[at], each) for at, each in bad.items()]
    good = [at for at in range(len(indices)) if at not in bad]
    tensors = _tensors(numbers[good], codes[good])
    if labels:
        tensors["labels"] = torch.tensor(
            [labels[at] for at in good], dtype=torch.int64 if names else torch.float32
        )
    indices = [indices[at] for at in good]
    return TableRows(Examples.of(list(range(len(indices))), part.table, indices), indices, tensors)


def _tensors(numbers: NDArray[np.float32], codes: NDArray[np.int64]) -> dict[str, Tensor]:
    import torch

    return {NUMBERS: torch.from_numpy(numbers), CATEGORIES: torch.from_numpy(codes)}


def _new_categories(rows: TableRows, table_format: TableFormat) -> list[str]:
    """Return, in words, how many rows have a category that no row to train on had, or a gap where those had none."""
    counts = (rows.tensors[CATEGORIES] == 0).sum(dim=0).tolist()
    return [
        f"{count:,} of {len(rows):,} rows have a category in '{column.name}' that no row to train on has."
        for column, count in zip(table_format.categories, counts, strict=True)
        if count and not column.gaps
    ]


def _report(
    train: TableRows | None,
    validation: TableRows,
    names: Sequence[str],
    skipped: Mapping[str, int],
    warned: Sequence[str],
) -> DataReport:
    labels = (validation if train is None else train).tensors.get("labels")
    counts = Counter(labels.tolist() if names and labels is not None else ())
    return DataReport(
        train=0 if train is None else len(train),
        validation=len(validation),
        skipped=dict(skipped),
        labels={name: counts[place] for place, name in enumerate(names)},
        warnings=tuple(warned),
    )
