"""Texts that are written after reading others: rows with a text and the one to write, to examples for an encoder with a decoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from snugfit.data.bad_rows import BadRow, Fault, check_policy, check_rows_left, settle, text_of
from snugfit.data.examples import Examples
from snugfit.data.files.file_rows import FileRows
from snugfit.data.report import DataReport
from snugfit.data.row_settings import RowSettings
from snugfit.data.sources import RowSource, check_columns, fingerprints_of, read_table
from snugfit.data.splits.leaks import inputs_of_texts
from snugfit.data.texts.token_cache import TokenEntry, cached, texts_digest
from snugfit.data.texts.token_rows import ArrayExamples, TokenRows, TokenWriter
from snugfit.data.texts.tokens import (
    Encoded,
    PadRight,
    check_max_length,
    padding_for,
    special_frame,
    token_warnings,
)
from snugfit.data.usable_rows import Part, encode_part, joined
from snugfit.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_BATCH = 1000
_EXAMPLE_ROWS = 32
_INPUTS = ("input_ids", "attention_mask")


@dataclass(frozen=True)
class TextToTextSettings(RowSettings):
    """The `data` part of a recipe for texts that are written after reading others.

    Args:
        target: the column of the text to write.
        target_length: its tokens at most.
        prefix: stands before each text that is read; None for nothing.
    """

    target: str = "target"
    target_length: int = 128
    prefix: str | None = None


@dataclass(frozen=True)
class TextToTextData:
    """Examples to train and validate on: `input_ids` of the text that is read, and `labels`, the tokens of the one to write."""

    train: Examples
    validation: Examples
    collate: PadRight
    report: DataReport
    fingerprints: Mapping[str, str]
    example_rows: list[dict[str, str]]


class TargetRows(ArrayExamples):
    """Examples of a text that is read and, where they are learned from, of the one to write, which is not equally long.

    >>> sources = TokenRows.of([{"input_ids": [5, 6], "attention_mask": [1, 1]}])
    >>> rows = TargetRows(sources, TokenRows.of([{"input_ids": [7]}]))
    >>> rows[0], rows.sizes()
    ({'input_ids': [5, 6], 'attention_mask': [1, 1], 'labels': [7]}, [5])
    """

    def __init__(self, sources: TokenRows, targets: TokenRows | None) -> None:
        self.sources, self._targets = sources, targets

    def __len__(self) -> int:
        return len(self.sources)

    def at(self, places: Sequence[int]) -> TargetRows:
        return TargetRows(
            self.sources.at(places), None if self._targets is None else self._targets.at(places)
        )

    def sizes(self) -> list[int]:
        sizes = self.sources.sizes()
        if self._targets is None:
            return sizes
        return [sum(both) for both in zip(sizes, self._targets.sizes(), strict=True)]

    def token_counts(self) -> list[int]:
        return self.sources.token_counts()

    def arrays(self, place: int) -> dict[str, Any]:
        whole = self.sources.arrays(place)
        example = {name: whole[name] for name in _INPUTS}  # such a model has no token types
        return example if self._targets is None else {**example, "labels": self._targets.tokens(place)}


def load_text_to_text_rows(
    settings: TextToTextSettings, tokenizer: PreTrainedTokenizerBase, *, folder: Path | None = None
) -> TextToTextData:
    """Read, validate, split and tokenise.

    Raises:
        DataError: a source cannot be used, rows are faulty and the policy is 'fail', or too little is left.
        SettingError: a length leaves no room for text, or the model cannot read so much.
    """
    frame = special_frame(tokenizer)
    check_max_length(settings.max_length, tokenizer, len(frame))
    check_max_length(settings.target_length, tokenizer, len(frame), "data.target_length")
    parts = [
        read_targets(source, setting, settings.text, settings.target, settings.prefix, folder)
        for setting, source in settings.sources
    ]
    read = [_encoded(part, settings, tokenizer) for part in parts]
    skipped = settle([fault for each in read for fault in each.faults], settings.bad_rows)
    inputs = inputs_of_texts([each.part.texts for each in read])
    made = settings.sides([each.examples for each in read], inputs)
    train, held_out = made.train, made.validation
    sides = [("data.train", "train", train)]
    if settings.validation is not None:
        sides.append(("data.validation", "validate", held_out))
    for setting, use, examples in sides:
        if not examples:
            raise DataError(setting, f"leaves no row to {use} on", "Give more rows, or correct these.")
    warnings = [warning for each in read for warning in each.warnings]
    warnings += token_warnings([each.sources for each in read], tokenizer, frame)
    warnings += made.warnings
    return TextToTextData(
        train=train,
        validation=held_out,
        collate=padding_for(tokenizer),
        report=replace(
            _report(read, settings, skipped, warnings), train=len(train), validation=len(held_out)
        ),
        fingerprints=fingerprints_of(part.table for part in parts),
        example_rows=read[-1].part.cells(made.shown[:_EXAMPLE_ROWS], [*settings.text, settings.target]),
    )


def load_written_rows(
    source: RowSource,
    settings: TextToTextSettings,
    tokenizer: PreTrainedTokenizerBase,
    *,
    labelled: bool,
    folder: Path | None = None,
) -> FileRows:
    """Read one source to evaluate on, or, where it is not `labelled`, to write a text after each of; order and all columns are kept.

    Args:
        settings: those of the training; `bad_rows` is of this source.
    Raises:
        DataError: as for `load_text_to_text_rows`.
    """
    check_policy(settings.bad_rows)
    target = settings.target if labelled else None
    part = read_targets(source, "data", settings.text, target, settings.prefix, folder)
    read = _encoded(part, settings, tokenizer)
    skipped = settle(read.faults, settings.bad_rows)
    check_rows_left(read.part.row_indices, part.table.source)
    rows, table = read.part.row_indices, part.table
    return FileRows(
        examples=read.examples,
        rows=[table.rows[row] for row in rows],
        lines=[table.lines[row] for row in rows],
        columns=table.columns,
        collate=padding_for(tokenizer),
        report=replace(_report([read], settings, skipped, read.warnings), validation=len(rows)),
        fingerprints=table.fingerprints,
    )


def read_targets(
    source: RowSource,
    setting: str,
    text: Sequence[str],
    target: str | None,
    prefix: str | None,
    folder: Path | None,
) -> Part:
    """Return the rows of a source that can be used, whose labels are the texts to write, and the faults of the others."""
    table = read_table(source, setting=setting, folder=folder)
    if table.rows:
        check_columns(table, {"data.text": text, "data.target": [] if target is None else [target]})
    part = Part(table, [], [], [], list(table.faults))
    for index, row in enumerate(table.rows):
        try:
            read = read_text(row, text, prefix)
            written = "" if target is None else text_of(row, [target])
        except BadRow as bad:
            part.faults.append(table.fault(index, bad))
            continue
        part.row_indices.append(index)
        part.texts.append(read)
        part.labels.append(written)
    return replace(part, faults=table.in_order(part.faults))


def read_text(row: Mapping[str, Any], text: Sequence[str], prefix: str | None) -> str:
    """Return the text that is read of a row.

    Raises:
        BadRow: it has none.
    """
    return f"{prefix or ''}{text_of(row, text)}"


@dataclass(frozen=True)
class _Read:
    """The rows of one source as examples, and what was cut of them."""

    part: Part
    examples: Examples
    sources: TokenRows
    lengths: list[int]
    faults: list[Fault]
    warnings: tuple[str, ...]


def _encoded(part: Part, settings: TextToTextSettings, tokenizer: PreTrainedTokenizerBase) -> _Read:
    """Tokenise both texts of rows; one of which nothing is left to read but special tokens is a fault."""
    special = len(special_frame(tokenizer))
    sources, part, faults = encode_part(part, tokenizer, settings.max_length, special)
    if not any(part.labels):
        rows = TargetRows(sources.examples, None)
        examples = Examples.of(rows, part.table, part.row_indices)
        return _Read(part, examples, sources.examples, sources.lengths, [*part.faults, *faults], ())
    targets = joined(
        [encoded_targets(part.labels[own], tokenizer, settings.target_length) for own in part.sources]
    )
    rows, lengths = TargetRows(sources.examples, targets.examples), targets.lengths
    cut, limit = sum(length > settings.target_length for length in lengths), settings.target_length
    warnings: tuple[str, ...] = ()
    if cut:
        warnings = (
            f"{cut:,} of {len(lengths):,} texts to write in {part.table.source} have more than {limit} tokens (data.target_length), and their "
            f"ends are cut off; the longest has {max(lengths):,}.",
        )
    examples = Examples.of(rows, part.table, part.row_indices)
    return _Read(part, examples, sources.examples, sources.lengths, [*part.faults, *faults], warnings)


def encoded_targets(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, max_length: int) -> Encoded:
    """Return the tokens of texts to write, each with the token by which it ends.

    They are tokenised as targets, which some tokenizers of translations do in another way.
    """
    end = tokenizer.eos_token_id

    def make() -> TokenEntry:
        writer, lengths = TokenWriter(), []
        for start in range(0, len(texts), _BATCH):
            chunk = list(texts[start : start + _BATCH])
            for ids in tokenizer(text_target=chunk, verbose=False)["input_ids"]:
                whole = list(ids) if end is None or end in ids[-2:] else [*ids, end]
                lengths.append(len(whole))
                writer.add({"input_ids": _cut(whole, max_length, end)})
        return TokenEntry(writer.rows(), {"lengths": np.asarray(lengths)})

    entry = cached("targets", {"texts": texts_digest(texts), "max_length": max_length}, tokenizer, make)
    return Encoded(entry.rows, entry.numbers["lengths"].tolist())


def _cut(ids: list[int], most: int, end: int | None) -> list[int]:
    """Return at most so many tokens, with their end in place of the last one where some were cut off.

    >>> _cut([5, 6, 7, 1], 3, end=1), _cut([5, 1], 3, end=1)
    ([5, 6, 1], [5, 1])
    """
    if len(ids) <= most:
        return ids
    return ids[:most] if end is None else [*ids[: most - 1], end]


def _report(
    read: Sequence[_Read],
    settings: TextToTextSettings,
    skipped: Mapping[str, int],
    warnings: Sequence[str],
) -> DataReport:
    lengths = [length for each in read for length in each.lengths]
    report = DataReport(train=0, validation=0, skipped=dict(skipped), warnings=tuple(warnings))
    return report.with_tokens(lengths, settings.max_length)
