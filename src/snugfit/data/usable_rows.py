"""The rows of one source that can be used, as texts and labels, and the faults of the others."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from snugfit.data.bad_rows import SHOWN, BadRow, Fault, label_of, shorten, text_of
from snugfit.data.columns import check_columns
from snugfit.data.sources import RowSource, Table, read_table
from snugfit.data.tokens import Encoded, encode
from snugfit.errors import nearest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Part:
    """The good rows of one table, and the faults of the others."""

    table: Table
    row_indices: list[int]
    texts: list[str]
    labels: list[str]
    faults: list[Fault] = field(default_factory=list)


def read_part(
    source: RowSource,
    setting: str,
    text: Sequence[str],
    label: str | None,
    known: Sequence[str] | None,
    folder: Path | None,
) -> Part:
    """Return the rows of a source that can be used, and the faults of the others."""
    return part_of_table(read_table(source, setting=setting, folder=folder), text, label, known)


def part_of_table(
    table: Table,
    text: Sequence[str],
    label: str | None,
    known: Sequence[str] | None,
    setting: str = "data.text",
) -> Part:
    """Return the rows of a table that can be used, and the faults of the others.

    Args:
        known: labels that there may be; None for any.
        setting: that names the columns of text.
    """
    if table.rows:
        check_columns(table, {setting: text, "data.label": [label] if label is not None else []})
    part = Part(table, [], [], [], list(table.faults))
    kinds: list[str] = []
    lookup = set(known) if known is not None else None
    unknown = 0
    for index, (row, line) in enumerate(zip(table.rows, table.lines, strict=True)):
        try:
            words = text_of(row, text)
            kind, name = label_of(row, label) if label is not None else ("", "")
            if label is not None and lookup is not None and name not in lookup:
                unknown += 1
                hint = nearest(name, lookup) if unknown <= SHOWN and len(lookup) <= 50 else ""
                raise BadRow("unknown label", f"the label '{shorten(name)}' was not trained. {hint}".strip())
        except BadRow as bad:
            part.faults.append(bad.at(table.source, line))
            continue
        part.row_indices.append(index)
        part.texts.append(words)
        part.labels.append(name)
        kinds.append(kind)
    part = _drop_other_kinds(part, kinds)
    part.faults.sort(key=lambda fault: fault.line)
    return part


def _drop_other_kinds(part: Part, kinds: list[str]) -> Part:
    """Refuse labels of more than one kind in a table: rows of another kind (1 beside "1") are faults."""
    counts = Counter(kinds).most_common()
    if len(counts) < 2:
        return part
    usual = counts[0][0]
    faults = [
        Fault(
            part.table.source,
            part.table.lines[row],
            "mixed label types",
            f"the label {name if kind != 'text' else repr(name)} is {kind}, most labels are {usual}",
        )
        for row, name, kind in zip(part.row_indices, part.labels, kinds, strict=True)
        if kind != usual
    ]
    places = [place for place, kind in enumerate(kinds) if kind == usual]
    return _choose(part, places, part.faults + faults)


def _choose(part: Part, places: list[int], faults: list[Fault]) -> Part:
    return Part(
        part.table,
        [part.row_indices[place] for place in places],
        [part.texts[place] for place in places],
        [part.labels[place] for place in places],
        faults,
    )


def encode_part(
    part: Part, tokenizer: PreTrainedTokenizerBase, max_length: int, special: int
) -> tuple[Encoded, Part, list[Fault]]:
    """Tokenise; a text of which nothing but special tokens is left is a fault."""
    encoded = encode(part.texts, tokenizer, max_length)
    empty = [place for place, length in enumerate(encoded.lengths) if length <= special]
    if not empty:
        return encoded, part, []
    faults = [
        Fault(
            part.table.source,
            part.table.lines[part.row_indices[place]],
            "empty text",
            f"the tokenizer leaves nothing of {part.texts[place]!r}",
        )
        for place in empty
    ]
    places = [place for place in range(len(encoded.lengths)) if encoded.lengths[place] > special]
    encoded = Encoded(
        [encoded.examples[place] for place in places], [encoded.lengths[place] for place in places]
    )
    return encoded, _choose(part, places, part.faults), faults
