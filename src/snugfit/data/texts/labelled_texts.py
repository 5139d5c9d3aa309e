"""Texts with labels: rows with a class, any number of labels or a number, to examples for a model."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snugfit.data.bad_rows import check_policy, check_rows_left, settle
from snugfit.data.examples import Examples
from snugfit.data.files.file_rows import Collate, FileRows
from snugfit.data.labels.class_names import check_classes, label_warnings, sort_labels
from snugfit.data.labels.label_sets import LabelSets, check_names, rare_label_warnings, strata_of
from snugfit.data.labels.target_numbers import check_differences
from snugfit.data.report import DataReport
from snugfit.data.row_settings import RowSettings
from snugfit.data.sources import RowSource, fingerprints_of
from snugfit.data.splits.hold_out import SHARES
from snugfit.data.splits.leaks import inputs_of_texts
from snugfit.data.texts.token_rows import Example
from snugfit.data.texts.tokens import (
    Encoded,
    Frame,
    check_max_length,
    padding_for,
    special_frame,
    special_tokens_of_pairs,
    token_warnings,
)
from snugfit.data.usable_rows import Part, encode_part, read_part

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

EXAMPLE_ROWS = 32


@dataclass(frozen=True)
class TextSettings(RowSettings):
    """The `data` part of a recipe for labels or a number of each text; a fraction to validate on is stratified by class, or by rarest label.

    Args:
        label: the column of labels, or the place of labels of which a row has any number.
        pair: the column of a second text, which is read with the first one.
        classes: whether the label is a class, or else a number.
    """

    label: str | LabelSets = "label"
    pair: str | None = None
    classes: bool = True


@dataclass(frozen=True)
class TextData:
    """Examples to train and validate on; label i of an example is the name `labels[i]`, where there are classes.

    Where rows have any number of labels, an example has 1 or 0 for each name.
    `middle` and `spread` are the mean and the deviation of a number to be learned, over the rows to train on.

    `fingerprints` holds the sha256 of every source by its name, `collate` pads on the right to the longest.
    `example_rows` are the text columns of a few rows that were not trained on (or were, where there are none).
    """

    train: Examples
    validation: Examples
    labels: tuple[str, ...]
    collate: Collate
    report: DataReport
    fingerprints: Mapping[str, str]
    tokenizer: PreTrainedTokenizerBase
    example_rows: list[dict[str, str]]
    middle: float = 0.0
    spread: float = 1.0


def load_text(
    settings: TextSettings,
    tokenizer: PreTrainedTokenizerBase,
    *,
    labels: Sequence[str] | None = None,
    folder: Path | None = None,
) -> TextData:
    """Read, validate, split and tokenise.

    Args:
        labels: the names to use, in this order; otherwise those of the training rows, sorted.
        folder: where relative paths and Python modules are looked for.
    Raises:
        DataError: a source cannot be used, rows are faulty and the policy is 'fail', or too little is left.
    """
    frame = special_frame(tokenizer)
    special = _special(tokenizer, frame, settings.pair)
    check_max_length(settings.max_length, tokenizer, special)
    read = partial(
        read_part,
        text=settings.text,
        label=settings.label,
        folder=folder,
        pair=settings.pair,
        numbers=not settings.classes,
    )
    train = read(settings.train, "data.train", known=labels)
    names: tuple[str, ...] = ()
    sets = settings.label if isinstance(settings.label, LabelSets) else None
    if labels is not None:
        names = tuple(labels)
    elif settings.classes:
        names = sort_labels(set(train.labels)) if sets is None else sets.names_in(train.labels)
    parts = [train]
    validation: Part | None = None
    if settings.validation is not None and not isinstance(settings.validation, SHARES):
        validation = read(settings.validation, "data.validation", known=names if settings.classes else None)
        parts.append(validation)
    skipped = Counter(settle([fault for part in parts for fault in part.faults], settings.bad_rows))
    if sets is not None:
        check_names(names, train.table.source, sets)
    elif settings.classes:
        check_classes(set(train.labels), train.table.source, str(settings.label))
    encoded: list[Encoded] = []
    usable: list[Part] = []
    for part in parts:
        tokens, usable_part, faults = encode_part(part, tokenizer, settings.max_length, special)
        skipped.update(settle(faults, settings.bad_rows))
        usable.append(usable_part)
        encoded.append(_with_labels(tokens, usable_part.labels, names))
    examples, *others = (
        Examples.of(tokens.examples, part.table, part.row_indices)
        for tokens, part in zip(encoded, usable, strict=True)
    )
    warnings = token_warnings([part.examples for part in encoded], tokenizer, frame)
    if settings.classes:
        column = sets.column if sets is not None else str(settings.label)
        warnings += label_warnings(names, len(train.labels), column)
    classes: Sequence[Hashable] | None = None
    if settings.classes:
        classes = usable[0].labels if sets is None else strata_of(usable[0].labels)
    inputs = inputs_of_texts([part.contents for part in usable])
    sides = settings.sides([examples, *others], inputs, classes)
    examples, held_out = sides.train, sides.validation
    check_rows_left(examples, parts[0].table.source)
    if validation is not None:
        check_rows_left(held_out, parts[-1].table.source)
    warnings += sides.warnings
    counts = _count_labels(examples, names)
    warnings += rare_label_warnings(counts) if sets is not None else []
    report = _report(encoded, settings.max_length, dict(skipped), warnings)
    numbers = [] if settings.classes else [example["labels"] for example in examples]
    if numbers:
        check_differences(numbers, str(settings.label))
    return TextData(
        train=examples,
        validation=held_out,
        labels=names,
        collate=padding_for(tokenizer),
        report=replace(report, train=len(examples), validation=len(held_out), labels=counts),
        fingerprints=fingerprints_of(part.table for part in parts),
        tokenizer=tokenizer,
        example_rows=usable[-1].cells(sides.shown[:EXAMPLE_ROWS], _columns(settings.text, settings.pair)),
        middle=statistics.fmean(numbers) if numbers else 0.0,
        spread=statistics.pstdev(numbers) if numbers else 1.0,
    )


def load_text_rows(
    source: RowSource,
    tokenizer: PreTrainedTokenizerBase,
    *,
    text: Sequence[str],
    label: str | LabelSets | None = None,
    labels: Sequence[str] | None = (),
    pair: str | None = None,
    max_length: int = 128,
    bad_rows: str = "fail",
    folder: Path | None = None,
) -> FileRows:
    """Read one source to evaluate on (with `label` and the model's `labels`; None where a label is a number) or to predict (without).

    Order and all input columns are kept. A label the model does not know is a fault of its row.

    Raises:
        DataError: as for `load_text`.
    """
    check_policy(bad_rows)
    frame = special_frame(tokenizer)
    special = _special(tokenizer, frame, pair)
    check_max_length(max_length, tokenizer, special)
    known = labels if label is not None else None
    part = read_part(source, "data", text, label, known, folder, pair=pair, numbers=labels is None)
    skipped = Counter(settle(part.faults, bad_rows))
    encoded, part, faults = encode_part(part, tokenizer, max_length, special)
    skipped.update(settle(faults, bad_rows))
    check_rows_left(part.row_indices, part.table.source)
    if label is not None:
        encoded = _with_labels(encoded, part.labels, labels or ())
    report = _report(
        [encoded], max_length, dict(skipped), token_warnings([encoded.examples], tokenizer, frame)
    )
    return FileRows(
        examples=Examples.of(encoded.examples, part.table, part.row_indices),
        rows=[part.table.rows[row] for row in part.row_indices],
        lines=[part.table.lines[row] for row in part.row_indices],
        columns=part.table.columns,
        collate=padding_for(tokenizer),
        report=replace(
            report,
            validation=len(part.row_indices),
            labels=_count_labels(encoded.examples, labels or ()) if label else {},
        ),
        fingerprints=part.table.fingerprints,
    )


def _special(tokenizer: PreTrainedTokenizerBase, frame: Frame, pair: str | None) -> int:
    """Return how many special tokens each example has."""
    return len(frame) if pair is None else special_tokens_of_pairs(tokenizer)


def _columns(text: Sequence[str], pair: str | None) -> list[str]:
    return [*text, *([] if pair is None else [pair])]


def _with_labels(encoded: Encoded, labels: Sequence[Any], names: Sequence[str]) -> Encoded:
    """Return examples with labels: classes by their names, 1 or 0 for each name, or numbers, where there are no names."""
    index = {name: place for place, name in enumerate(names)}
    of_sets: dict[Any, list[float]] = {}

    def value(label: Any) -> Any:
        if not isinstance(label, tuple):
            return index[label] if names else float(label)
        if label not in of_sets:
            of_sets[label] = [float(name in label) for name in names]
        return of_sets[label]

    return Encoded(encoded.examples.with_values(labels=[value(label) for label in labels]), encoded.lengths)


def _count_labels(examples: Sequence[Example], names: Sequence[str]) -> dict[str, int]:
    counts: Counter[int] = Counter()
    for example in examples:
        label = example["labels"]
        counts.update(
            [place for place, one in enumerate(label) if one] if isinstance(label, list) else [label]
        )
    return {name: counts[place] for place, name in enumerate(names)}


def _report(
    parts: Sequence[Encoded], max_length: int, skipped: dict[str, int], warnings: list[str]
) -> DataReport:
    lengths = [length for part in parts for length in part.lengths]
    report = DataReport(train=0, validation=0, skipped=skipped, warnings=tuple(warnings))
    return report.with_tokens(lengths, max_length)
