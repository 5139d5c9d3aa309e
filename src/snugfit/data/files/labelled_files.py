"""Files with a class, any number of labels, or none: read, checked and split, for what decodes them when they are asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snugfit.data.bad_rows import check_policy, settle
from snugfit.data.examples import FILE, Examples
from snugfit.data.files.file_rows import FileRows
from snugfit.data.files.path_rows import FileKind, read_files
from snugfit.data.labels.class_names import check_classes, label_warnings, sort_labels
from snugfit.data.labels.label_sets import LabelSets, check_names, rare_label_warnings, strata_of
from snugfit.data.report import DataReport
from snugfit.data.sources import RowSource
from snugfit.data.splits.hold_out import SHARES
from snugfit.data.splits.leaks import Inputs, LeakSettings
from snugfit.data.splits.sides import Validation, make_sides
from snugfit.data.usable_rows import Part
from snugfit.errors import DataError

if TYPE_CHECKING:
    from torch import Tensor

    from snugfit.data.files.file_rows import MapStyle

_EXAMPLE_ROWS = 32


@dataclass(frozen=True)
class LabelledFiles:
    """Files to train and validate on, each with its path and, where there are labels, `labels`.

    These are the number of a class, whose name is `labels[number]`, or, of a row with any number of labels, 1 or 0 for each name.
    """

    train: Examples
    validation: Examples
    labels: tuple[str, ...]
    report: DataReport
    fingerprints: Mapping[str, str]
    example_rows: list[dict[str, str]]


def load_files(
    kind: FileKind,
    *,
    train: RowSource,
    validation: Validation,
    column: str,
    label: str | LabelSets | None,
    bad_rows: str,
    seed: int,
    leaks: LeakSettings,
    folder: Path | None = None,
) -> LabelledFiles:
    """Read, validate and split; a fraction to validate on is stratified by label.

    Args:
        column, label: columns; no label is read where it is None.
    Raises:
        DataError: a source cannot be used, files are faulty and the policy is 'fail', or too little is left.
    """
    columns: dict[str, Any] = {"column": column, "label": label, "folder": folder}
    part, digests = read_files(train, "data.train", kind, **columns)
    names = _names(part, label)
    faults = list(part.faults)
    held_out: Part | None = None
    others: list[str] = []
    if validation is not None and not isinstance(validation, SHARES):
        known = names if label is not None else None
        held_out, others = read_files(validation, "data.validation", kind, **columns, known=known)
        faults += held_out.faults
    skipped = settle(faults, bad_rows)
    if isinstance(label, LabelSets):
        check_names(names, part.table.source, label)
    elif label is not None:
        check_classes(names, part.table.source, label)
    elif not part.row_indices:
        raise _nothing_left(kind, part)
    rows, shown_part = _examples(part, names, label), part
    fingerprints = {part.table.source: part.table.sha256}
    read = [rows]
    if held_out is not None:
        read.append(_examples(held_out, names, label))
        shown_part = held_out
        fingerprints[held_out.table.source] = held_out.table.sha256
        if not read[1]:
            raise _nothing_left(kind, held_out)
    sides = make_sides(
        read,
        validation,
        seed,
        inputs=inputs_of_files(kind, [digests, others], [[row[FILE] for row in each] for each in read]),
        leaks=leaks,
        classes=strata_of(part.labels)
        if isinstance(label, LabelSets)
        else [row.get("labels") for row in rows],
    )
    rows, validated = sides.train, sides.validation
    warned = [*_warnings(rows, names, label), *sides.warnings]
    return LabelledFiles(
        train=rows,
        validation=validated,
        labels=names,
        report=_report(kind, rows, validated, names, skipped, warned),
        fingerprints=fingerprints,
        example_rows=[{column: shown_part.texts[place]} for place in sides.shown[:_EXAMPLE_ROWS]],
    )


def inputs_of_files(
    kind: FileKind, digests: Sequence[Sequence[str]], paths: Sequence[Sequence[str]]
) -> Inputs:
    """Return the contents of files, by their digests, and by how they look where their kind is compared so."""
    return Inputs(kind.plural, digests.__getitem__, paths.__getitem__, kind.near)


def load_file_rows(
    kind: FileKind,
    source: RowSource,
    decoded: Callable[[Examples], MapStyle],
    collate: Callable[[list[Any]], Any],
    *,
    column: str,
    label: str | LabelSets | None,
    labels: Sequence[str],
    bad_rows: str,
    folder: Path | None = None,
) -> FileRows:
    """Read one source to evaluate on (with `label` and the model's `labels`) or to predict (without), in its order.

    Args:
        decoded: the examples of files.
    Raises:
        DataError: as for `load_files`; a label that the model does not know is a fault of its row.
    """
    check_policy(bad_rows)
    known = labels if label is not None else None
    part, _ = read_files(source, "data", kind, column=column, label=label, known=known, folder=folder)
    skipped = settle(part.faults, bad_rows)
    if not part.row_indices:
        raise _nothing_left(kind, part)
    names = labels if label is not None else ()
    rows = _examples(part, names, label)
    return FileRows(
        examples=decoded(rows),
        rows=[part.table.rows[row] for row in part.row_indices],
        lines=[part.table.lines[row] for row in part.row_indices],
        columns=part.table.columns,
        collate=collate,
        report=_report(kind, rows.at(()), rows, names, skipped, ()),
        fingerprints={part.table.source: part.table.sha256},
    )


def collate(examples: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
    """Return a batch: the inputs of the model, shape (rows, …), and `labels`, shape (rows,) or (rows, names), where there are any."""
    import torch

    names = [name for name in examples[0] if name != "labels"]
    batch = {name: torch.stack([example[name] for example in examples]) for name in names}
    if "labels" in examples[0]:
        batch["labels"] = torch.tensor([example["labels"] for example in examples])
    return batch


def _names(part: Part, label: str | LabelSets | None) -> tuple[str, ...]:
    """Return the names of the labels that rows to train on have, in order."""
    if label is None:
        return ()
    return label.names_in(part.labels) if isinstance(label, LabelSets) else sort_labels(set(part.labels))


def _examples(part: Part, names: Sequence[str], label: str | LabelSets | None) -> Examples:
    number = {name: place for place, name in enumerate(names)}
    rows: list[dict[str, Any]] = []
    for path, of_row in zip(part.texts, part.labels, strict=True):
        row: dict[str, Any] = {FILE: path}
        if isinstance(label, LabelSets):
            row["labels"] = [float(name in of_row) for name in names]
        elif label is not None:
            row["labels"] = number[of_row]
        rows.append(row)
    made = Examples.of(rows, part.table, part.row_indices)
    made.unit = FILE
    return made


def _warnings(rows: Examples, names: Sequence[str], label: str | LabelSets | None) -> list[str]:
    if label is None:
        return []
    if isinstance(label, LabelSets):
        return [
            *label_warnings(names, len(rows), label.column),
            *rare_label_warnings(_counts(rows, names)),
        ]
    return [*label_warnings(names, len(rows), label)]


def _counts(rows: Examples, names: Sequence[str]) -> dict[str, int]:
    """Return how many rows have each label."""
    counts: Counter[int] = Counter()
    for row in rows:
        own = row.get("labels")
        counts.update([place for place, one in enumerate(own) if one] if isinstance(own, list) else [own])
    return {name: counts[place] for place, name in enumerate(names)}


def _report(
    kind: FileKind,
    train: Examples,
    validation: Examples,
    names: Sequence[str],
    skipped: Mapping[str, int],
    warned: Sequence[str],
) -> DataReport:
    return DataReport(
        train=len(train),
        validation=len(validation),
        skipped=dict(skipped),
        labels=_counts(train or validation, names),
        warnings=tuple(warned),
        unit=kind.plural,
    )


def _nothing_left(kind: FileKind, part: Part) -> DataError:
    return DataError(
        "data",
        f"no usable {kind.noun} is left in {part.table.source}",
        "Correct them, or name another source.",
    )
