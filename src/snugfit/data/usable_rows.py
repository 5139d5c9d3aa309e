"""The rows of one source that can be used, as texts and labels, and the faults of the others."""

from __future__ import annotations

import itertools
import json
import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from snugfit.data.bad_rows import SHOWN, BadRow, Fault, label_of, shorten, text_of
from snugfit.data.labels.label_sets import LabelSets
from snugfit.data.labels.target_numbers import check_size
from snugfit.data.sources import RowSource, Table, check_columns, read_table
from snugfit.data.tables.table_cells import parsed_cell
from snugfit.data.texts.token_cache import TokenEntry, cached, texts_digest
from snugfit.data.texts.token_rows import TokenRows
from snugfit.data.texts.tokens import Encoded, encode
from snugfit.errors import DataError, nearest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Part:
    """The good rows of one table, and the faults of the others.

    `labels` are names of classes, sets of them or numbers, `pairs` the second texts of rows that have two, `columns` those that a task reads
    where they are not those that a recipe names, and `classes` those of all rows, where each part of the rows would count its own.
    `records` are the rows as they are written elsewhere, where that is not with the cells of their columns, such as paths that go on
    leading to their files; `digests` are of what rows hold, where that is not their texts.
    """

    table: Table
    row_indices: list[int]
    texts: list[str]
    labels: list[Any]
    faults: list[Fault] = field(default_factory=list)
    pairs: list[str] = field(default_factory=list)
    columns: tuple[str, ...] | None = None
    classes: tuple[str, ...] | None = None
    records: Sequence[Mapping[str, Any]] | None = None
    digests: list[str] | None = None

    @property
    def contents(self) -> list[str] | list[tuple[str, str]]:
        """The text of each row, both of them, or the digest of what it holds."""
        if self.digests is not None:
            return self.digests
        return list(zip(self.texts, self.pairs, strict=True)) if self.pairs else self.texts

    @property
    def sources(self) -> list[slice]:
        """The places of the rows of each source."""
        starts = [bisect_left(self.row_indices, start) for start in self.table.starts]
        return [slice(start, end) for start, end in itertools.pairwise([*starts, len(self.row_indices)])]

    def cells(self, places: Sequence[int], columns: Sequence[str]) -> list[dict[str, Any]]:
        """Return the cells of some rows in these columns, an empty one as an empty text."""
        rows = [self.table.rows[self.row_indices[place]] for place in places]
        return [{column: row[column] or "" for column in columns} for row in rows]


def part_of_records(
    table: Table, rows: list[int], labels: list[Any], records: Sequence[Mapping[str, Any]]
) -> Part:
    """Return rows of a table that are their records, whatever these hold.

    Raises:
        DataError: a cell is neither text nor a number.
    """
    texts = [json.dumps(record, default=scalar) for record in records]
    return Part(table, rows, texts, labels, list(table.faults), records=records)


def scalar(value: Any) -> Hashable:
    """Return a scalar of NumPy or torch as Python's own; text and numbers as they are.

    Raises:
        DataError: it is neither.
    """
    plain = value.tolist() if hasattr(value, "tolist") else value
    if plain is not None and not isinstance(plain, (str, int, float)):
        raise DataError(
            "data.train",
            f"{plain!r:.60} is neither text nor a number, so rows cannot be dealt by it",
            "Name another column.",
        )
    return plain


def part_of_contents(
    table: Table, columns: Sequence[str], content: Callable[[Mapping[str, Any]], Any]
) -> Part:
    """Return the rows of a table that can be used, whose texts are their contents as JSON, and the faults of the others.

    Args:
        columns: those that the task reads.
        content: of a row; it raises a `BadRow` for one that cannot be used.
    """
    part = Part(table, [], [], [], list(table.faults), columns=tuple(columns))
    for index, row in enumerate(table.rows):
        try:
            made = content(row)
        except BadRow as bad:
            part.faults.append(table.fault(index, bad))
            continue
        part.row_indices.append(index)
        part.texts.append(json.dumps(made, default=str))
    return part


def read_part(
    source: RowSource,
    setting: str,
    text: Sequence[str],
    label: str | LabelSets | None,
    known: Sequence[str] | None,
    folder: Path | None,
    *,
    pair: str | None = None,
    numbers: bool = False,
) -> Part:
    """Return the rows of a source that can be used, and the faults of the others; the arguments are those of `part_of_table`."""
    table = read_table(source, setting=setting, folder=folder)
    return part_of_table(table, text, label, known, pair=pair, numbers=numbers)


def part_of_table(
    table: Table,
    text: Sequence[str],
    label: str | LabelSets | None,
    known: Sequence[str] | None,
    setting: str = "data.text",
    *,
    pair: str | None = None,
    numbers: bool = False,
) -> Part:
    """Return the rows of a table that can be used, and the faults of the others.

    Args:
        label: the column of labels, or the place of labels of which a row has any number.
        known: labels that there may be; None for any.
        setting: that names the columns of text.
        pair: the column of a second text.
        numbers: labels are numbers, not names of classes.
    """
    if table.rows:
        others = {"data.pair": [] if pair is None else [pair]}
        check_columns(table, {setting: text, **others, **_columns_of(label)})
    part = Part(table, [], [], [], list(table.faults))
    kinds: list[str] = []
    lookup = set(known) if known is not None else None
    unknown = 0
    for index, row in enumerate(table.rows):
        try:
            words = text_of(row, text)
            second = None if pair is None else text_of(row, [pair])
            kind, name = _label_of(row, label, numbers=numbers) if label is not None else ("", "")
            if label is not None and lookup is not None:
                for each in name if isinstance(name, tuple) else (name,):
                    if each not in lookup:
                        unknown += 1
                        hint = nearest(each, lookup) if unknown <= SHOWN and len(lookup) <= 50 else ""
                        raise BadRow(
                            "unknown label", f"the label '{shorten(each)}' was not trained. {hint}".strip()
                        )
        except BadRow as bad:
            part.faults.append(table.fault(index, bad))
            continue
        part.row_indices.append(index)
        part.texts.append(words)
        if second is not None:
            part.pairs.append(second)
        part.labels.append(name)
        kinds.append(kind)
    part = _drop_other_kinds(part, kinds)
    return replace(part, faults=table.in_order(part.faults))


def _columns_of(label: str | LabelSets | None) -> Mapping[str, Sequence[str]]:
    """Return the columns of labels by the setting that names them."""
    if isinstance(label, LabelSets):
        return label.asked
    return {} if label is None else {"data.label": [label]}


def _label_of(row: Mapping[str, Any], column: str | LabelSets, *, numbers: bool) -> tuple[str, Any]:
    """Return the kind of a row's label, and the name of its class, the names of its labels or its number."""
    if isinstance(column, LabelSets):
        return column.of(row)
    if not numbers:
        return label_of(row, column)
    if column not in row:
        raise BadRow("missing label", f"the row has no '{column}'")
    number = parsed_cell(row[column])
    if number is None:
        raise BadRow("missing label", f"{column} is {'empty' if row[column] == '' else shorten(row[column])}")
    if isinstance(number, str) or math.isinf(number):
        raise BadRow("unusable label", f"{column} is {shorten(row[column])}, not a number")
    return "number", check_size(number, column)


def _drop_other_kinds(part: Part, kinds: list[str]) -> Part:
    """Refuse labels of more than one kind in a table: rows of another kind (1 beside "1") are faults."""
    counts = Counter(filter(None, kinds)).most_common()  # a row without labels has no kind
    if len(counts) < 2:
        return part
    usual = counts[0][0]
    faults = [
        Fault(
            *part.table.place(row),
            "mixed label types",
            f"the label {_in_words(name, kind)} is {kind}, most labels are {usual}",
            part.table.rows[row],
        )
        for row, name, kind in zip(part.row_indices, part.labels, kinds, strict=True)
        if kind not in ("", usual)
    ]
    places = [place for place, kind in enumerate(kinds) if kind in ("", usual)]
    return _choose(part, places, part.faults + faults)


def _in_words(label: Any, kind: str) -> str:
    """Return a label, or the first of a row's labels, so that 1 and "1" look different."""
    name = label[0] if isinstance(label, tuple) else label
    return repr(name) if kind == "text" else str(name)


def _choose(part: Part, places: list[int], faults: list[Fault]) -> Part:
    return Part(
        part.table,
        [part.row_indices[place] for place in places],
        [part.texts[place] for place in places],
        [part.labels[place] for place in places],
        faults,
        [part.pairs[place] for place in places] if part.pairs else [],
    )


def encode_part(
    part: Part, tokenizer: PreTrainedTokenizerBase, max_length: int, special: int
) -> tuple[Encoded, Part, list[Fault]]:
    """Tokenise, or take what was tokenised before; a text of which nothing but special tokens is left is a fault."""
    encoded = _encoded(part, tokenizer, max_length)
    empty = [place for place, length in enumerate(encoded.lengths) if length <= special]
    if not empty:
        return encoded, part, []
    faults = [
        Fault(
            *part.table.place(part.row_indices[place]),
            "empty text",
            f"the tokenizer leaves nothing of {part.texts[place]!r}",
            part.table.rows[part.row_indices[place]],
        )
        for place in empty
    ]
    places = [place for place in range(len(encoded.lengths)) if encoded.lengths[place] > special]
    encoded = Encoded(encoded.examples.at(places), [encoded.lengths[place] for place in places])
    return encoded, _choose(part, places, part.faults), faults


def _encoded(part: Part, tokenizer: PreTrainedTokenizerBase, max_length: int) -> Encoded:
    return joined(
        [
            cached_tokens(part.texts[own], tokenizer, max_length, part.pairs[own])
            for own in part.sources  # what is cached of one holds whatever the others are
        ]
    )


def joined(parts: Sequence[Encoded]) -> Encoded:
    """Return the examples of several sources, one after the other."""
    lengths = [length for each in parts for length in each.lengths]
    return Encoded(TokenRows.joined([each.examples for each in parts]), lengths)


def cached_tokens(
    texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, max_length: int, pairs: Sequence[str] = ()
) -> Encoded:
    """Tokenise texts, or take what was tokenised before; the arguments are those of `encode`."""

    def make() -> TokenEntry:
        made = encode(texts, tokenizer, max_length, pairs)
        return TokenEntry(made.examples, {"lengths": np.asarray(made.lengths)})

    # by the texts, not by their file: rows that are left out and other labels make no other tokens
    by = {"texts": texts_digest(texts, pairs), "max_length": max_length}
    entry = cached("texts", by, tokenizer, make)
    return Encoded(entry.rows, entry.numbers["lengths"].tolist())
