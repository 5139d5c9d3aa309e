"""Pairs of texts that belong together: rows with a text, its partner, and perhaps a text that is none, to examples for an encoder."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from snugfit.data.bad_rows import BadRow, check_policy, check_rows_left, settle, text_of
from snugfit.data.examples import Examples
from snugfit.data.files.file_rows import FileRows
from snugfit.data.report import DataReport
from snugfit.data.row_settings import RowSettings
from snugfit.data.sources import RowSource, check_columns, fingerprints_of, read_table
from snugfit.data.splits.leaks import inputs_of_texts
from snugfit.data.texts.token_rows import TokenRows
from snugfit.data.texts.tokens import (
    check_max_length,
    encode,
    longest_lists,
    mask_of_lists,
    padded_lists,
    special_frame,
)
from snugfit.data.usable_rows import Part, cached_tokens, joined
from snugfit.errors import DataError, SettingError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

EXAMPLE_ROWS = 32
FEWEST = 2
"""Rows of a part, as the others of a window are a row's negatives."""


@dataclass(frozen=True)
class PairSettings(RowSettings):
    """The `data` part of a recipe for pairs of texts that belong together.

    Args:
        positive: the column of the text that belongs to the first one.
        negative: the column of a text that is like it and does not belong there; None for none.
    """

    positive: str = "positive"
    negative: str | None = None

    @property
    def further(self) -> tuple[str, ...]:
        """The columns of texts beside the first one, in order."""
        return (self.positive, *([] if self.negative is None else [self.negative]))


@dataclass(frozen=True)
class PairData:
    """Examples to train and validate on: `input_ids` of each text of a row, and `texts`, numbers that tell texts apart."""

    train: Examples
    validation: Examples
    collate: PadTexts
    report: DataReport
    fingerprints: Mapping[str, str]
    example_rows: list[dict[str, str]]


@dataclass(frozen=True)
class PadTexts:
    """Collate examples of some texts each into tensors (rows, texts, tokens), all padded to one length, so that they can be joined over ranks.

    >>> batch = PadTexts(0, 3)([{"input_ids": [[5, 6], [5]], "texts": [11, 12]}])
    >>> batch["input_ids"].tolist(), batch["lengths"], batch["labels"].tolist()
    ([[[5, 6, 0], [5, 0, 0]]], (2,), [[11, 12]])

    Args:
        padding: the token.
        length: of each text with its padding, which the model does not see whole: `lengths` says where it may be cut.
    """

    padding: int
    length: int

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        texts = [example["input_ids"] for example in examples]
        batch: dict[str, Any] = {
            "input_ids": padded_lists(texts, self.length, self.padding),
            "attention_mask": mask_of_lists(texts, self.length),
            "lengths": longest_lists(texts),
        }
        if "texts" in examples[0]:
            batch["labels"] = torch.tensor([example["texts"] for example in examples])
        return batch


def load_pairs(
    settings: PairSettings, tokenizer: PreTrainedTokenizerBase, *, folder: Path | None = None
) -> PairData:
    """Read, validate, split and tokenise.

    Raises:
        DataError: a source cannot be used, rows are faulty and the policy is 'fail', or too little is left.
        SettingError: two settings name one column.
    """
    check_max_length(settings.max_length, tokenizer, len(special_frame(tokenizer)))
    parts = [
        read_pairs(source, setting, settings.text, settings.further, folder)
        for setting, source in settings.sources
    ]
    skipped = settle([fault for part in parts for fault in part.faults], settings.bad_rows)
    encoded = [_encoded(part, tokenizer, settings.max_length) for part in parts]
    lengths = [length for _, own in encoded for length in own]
    inputs = inputs_of_texts([[each[:2] for each in part.labels] for part in parts], "pairs")
    made = settings.sides([examples for examples, _ in encoded], inputs)
    train, held_out = made.train, made.validation
    sides = [("data.train", "train", train)]
    if settings.validation is not None:
        sides.append(("data.validation", "validate", held_out))
    for setting, use, examples in sides:
        if len(examples) < FEWEST:
            count = "one row" if examples else "no row"
            raise DataError(
                setting,
                f"leaves {count} to {use} on, and the other rows are what a row is told from",
                "Give more rows.",
            )
    report = _report(lengths, settings.max_length, skipped, made.warnings)
    return PairData(
        train=train,
        validation=held_out,
        collate=pads(tokenizer, settings.max_length),
        report=replace(report, train=len(train), validation=len(held_out)),
        fingerprints=fingerprints_of(part.table for part in parts),
        example_rows=parts[-1].cells(made.shown[:EXAMPLE_ROWS], [*settings.text, *settings.further]),
    )


def load_pair_rows(
    source: RowSource,
    tokenizer: PreTrainedTokenizerBase,
    *,
    text: Sequence[str],
    further: Sequence[str],
    max_length: int,
    bad_rows: str,
    folder: Path | None = None,
) -> FileRows:
    """Read one source to evaluate on, or, without further columns, to embed the texts of; order and all columns are kept.

    Raises:
        DataError: as for `load_pairs`.
    """
    check_policy(bad_rows)
    part = read_pairs(source, "data", text, further, folder)
    skipped = settle(part.faults, bad_rows)
    check_rows_left(part.row_indices, part.table.source)
    examples, lengths = _encoded(part, tokenizer, max_length)
    return FileRows(
        examples=examples,
        rows=[part.table.rows[row] for row in part.row_indices],
        lines=[part.table.lines[row] for row in part.row_indices],
        columns=part.table.columns,
        collate=pads(tokenizer, max_length),
        report=replace(_report(lengths, max_length, skipped, []), validation=len(part.row_indices)),
        fingerprints=part.table.fingerprints,
    )


def read_pairs(
    source: RowSource, setting: str, text: Sequence[str], further: Sequence[str], folder: Path | None
) -> Part:
    """Return the rows of a source that can be used, and the faults of the others; the labels of a row are all its texts, in order."""
    table = read_table(source, setting=setting, folder=folder)
    names = dict(zip(("data.positive", "data.negative"), further, strict=False))
    if table.rows:
        check_columns(table, {"data.text": text, **{name: [column] for name, column in names.items()}})
    part = Part(table, [], [], [], list(table.faults))
    for index, row in enumerate(table.rows):
        try:
            texts = (text_of(row, text), *(text_of(row, [column]) for column in further))
            if len(texts) > 2 and texts[2] in texts[:2]:
                raise BadRow(
                    "negative is right", f"{further[1]} is one of the two texts that belong together"
                )
        except BadRow as bad:
            part.faults.append(table.fault(index, bad))
            continue
        part.row_indices.append(index)
        part.texts.append("\n".join(texts))
        part.labels.append(texts)
    return replace(part, faults=table.in_order(part.faults))


def encoded_texts(
    texts: Sequence[Sequence[str]], tokenizer: PreTrainedTokenizerBase, max_length: int
) -> TokenRows:
    """Return an example of each row of texts, equally many in each."""
    return _rows_of(texts, encode([text for row in texts for text in row], tokenizer, max_length).examples)


def _rows_of(texts: Sequence[Sequence[str]], tokens: TokenRows) -> TokenRows:
    """Return examples of rows of texts, given the tokens of all texts one after the other."""
    if not texts:
        return tokens
    numbers = np.array([[_number(text) for text in row] for row in texts], dtype=np.int64)
    ids = {"input_ids": tokens.lists["input_ids"]}
    return TokenRows(ids, tokens.ends, {"texts": numbers}, sequences=len(texts[0]))


def pads(tokenizer: PreTrainedTokenizerBase, max_length: int) -> PadTexts:
    """Return the collate function for a tokenizer's examples.

    Raises:
        SettingError: the tokenizer has no padding token.
    """
    if tokenizer.pad_token_id is None:
        raise SettingError("model", "has a tokenizer without a padding token", "Take an encoder.")
    return PadTexts(int(tokenizer.pad_token_id), max_length)


def _encoded(part: Part, tokenizer: PreTrainedTokenizerBase, max_length: int) -> tuple[Examples, list[int]]:
    """Return the examples of a part, and the tokens of each text before it was cut."""
    encoded = joined(
        [
            cached_tokens([text for row in part.labels[own] for text in row], tokenizer, max_length)
            for own in part.sources
        ]
    )
    rows = _rows_of(part.labels, encoded.examples)
    return Examples.of(rows, part.table, part.row_indices), encoded.lengths


def _number(text: str) -> int:
    """Return a number of 63 bits for a text, the same in every process."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def _report(
    lengths: Sequence[int], max_length: int, skipped: Mapping[str, int], warnings: Sequence[str]
) -> DataReport:
    report = DataReport(train=0, validation=0, skipped=dict(skipped), warnings=tuple(warnings))
    return report.with_tokens(lengths, max_length)
