"""Rows of texts whose words have tags, or in which spans of characters have labels: checked one by one."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from snugfit.data.bad_rows import BadRow, Fault, check_encodable, kind_of, shorten, text_of
from snugfit.data.sources import RowSource, Table, check_columns, read_table
from snugfit.data.texts.tags import Span, begins

Form = Literal["words", "spaced", "spans"]
"""Lists of words and of their tags; texts whose words and tags stand between spaces; or texts with spans of characters."""

_WORD = re.compile(r"\S+")
_KEYS = {"start": ("start", "begin", "start_offset"), "end": ("end", "stop", "end_offset")}
_LABELS = ("label", "tag", "type", "entity", "entity_group")


@dataclass(frozen=True)
class TaggedText:
    """A text, the characters of its words where these are given, and the tags of those words or the spans of characters.

    `words` is None where the tokenizer is to say what a word is. Without labels both `tags` and `spans` are empty.
    """

    text: str
    words: tuple[tuple[int, int], ...] | None = None
    tags: tuple[str, ...] = ()
    spans: tuple[Span, ...] = ()


@dataclass(frozen=True)
class TaggedPart:
    """The good rows of one table, and the faults of the others."""

    table: Table
    row_indices: list[int] = field(default_factory=list)
    texts: list[TaggedText] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    forms: set[Form] = field(default_factory=set)

    @property
    def tags(self) -> tuple[str, ...]:
        """The tags of words, and for each label of spans of characters the tag that begins one."""
        tags = {tag for each in self.texts for tag in each.tags}
        return tuple(sorted(tags | {begins(span.label) for each in self.texts for span in each.spans}))


def read_tagged(
    source: RowSource,
    setting: str,
    text: str,
    label: str | None,
    form: Form | None = None,
    folder: Path | None = None,
) -> TaggedPart:
    """Return the rows of a source that can be used, and the faults of the others.

    Args:
        label: the column of tags or spans; None where none are needed.
        form: of rows without labels: how the words of a text are told apart.
    """
    table = read_table(source, setting=setting, folder=folder)
    if table.rows:
        check_columns(table, {"data.text": [text], **({} if label is None else {"data.label": [label]})})
    part = TaggedPart(table, faults=list(table.faults))
    for index, row in enumerate(table.rows):
        try:
            own, tagged = tagged_text(row, text, label, form)
        except BadRow as bad:
            part.faults.append(table.fault(index, bad))
            continue
        part.forms.add(own)
        part.row_indices.append(index)
        part.texts.append(tagged)
    return replace(part, faults=table.in_order(part.faults))


def tagged_text(
    row: Mapping[str, Any], column: str, label: str | None, form: Form | None = None
) -> tuple[Form, TaggedText]:
    """Return the form of a row, and its text with what is labelled in it.

    Raises:
        BadRow: it has no text, or labels that do not fit it.
    """
    value = row.get(column)
    if isinstance(value, str) and form in (None, "words"):
        value = _listed(value) or value
    if isinstance(value, (list, tuple)):
        return "words", _of_words(list(value), row, column, label)
    text = text_of(row, [column])
    if label is None:
        words = _words_in(text) if form == "spaced" else None
        return form or "spans", TaggedText(text, words)
    labels = _labels_of(row, label)
    if isinstance(labels, str):
        words, tags = _words_in(text), labels.split()
        _check_lengths(len(words), len(tags), column, label)
        return "spaced", TaggedText(text, words, tuple(tags))
    return "spans", TaggedText(text, spans=_spans(labels, text, label))


def _listed(text: str) -> list[Any] | None:
    """Return the list of texts that a cell holds as JSON; None where it is any other text."""
    if not text.lstrip().startswith('["'):
        return None
    try:
        words = json.loads(text)
    except ValueError:
        return None
    return words if isinstance(words, list) and all(isinstance(word, str) for word in words) else None


def _words_in(text: str) -> tuple[tuple[int, int], ...]:
    return tuple(match.span() for match in _WORD.finditer(text))


def _of_words(words: list[Any], row: Mapping[str, Any], column: str, label: str | None) -> TaggedText:
    if not words:
        raise BadRow("empty text", f"{column} is an empty list")
    places, at = [], 0
    for number, word in enumerate(words, 1):
        if not isinstance(word, str):
            raise BadRow(
                "not text", f"word {number} of {column} is {kind_of(word)} ({shorten(word)}), not text"
            )
        if not word.strip():
            raise BadRow("empty word", f"word {number} of {column} is empty")
        check_encodable(word)
        places.append((at, at + len(word)))
        at += len(word) + 1
    text = " ".join(words)
    if label is None:
        return TaggedText(text, tuple(places))
    tags = _labels_of(row, label)
    tags = tags.split() if isinstance(tags, str) else tags
    _check_lengths(len(words), len(tags), column, label)
    for number, tag in enumerate(tags, 1):
        if tag == "":
            raise BadRow("unusable label", f"tag {number} of {label} is empty")
        if isinstance(tag, bool) or not isinstance(tag, (str, int)) or not str(tag).strip():
            raise BadRow("unusable label", f"tag {number} of {label} is {kind_of(tag)} ({shorten(tag)})")
        check_encodable(str(tag))
    return TaggedText(text, tuple(places), tuple(map(str, tags)))


def _labels_of(row: Mapping[str, Any], column: str) -> str | list[Any]:
    """Return a row's tags or spans: a list, a text of tags between spaces, or a list that is written as JSON."""
    if column not in row:
        raise BadRow("missing label", f"the row has no '{column}'")
    value = row[column]
    if value is None:
        raise BadRow("missing label", f"{column} is null")
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise BadRow("unusable label", f"{column} is no list in JSON ({shorten(error)})") from error
    if not isinstance(value, (str, list, tuple)):
        raise BadRow(
            "unusable label", f"{column} is {kind_of(value)} ({shorten(value)}), not a list of tags or spans"
        )
    return value if isinstance(value, str) else list(value)


def _check_lengths(words: int, tags: int, column: str, label: str) -> None:
    if words != tags:
        raise BadRow("words and tags differ", f"{column} has {words:,} words and {label} has {tags:,} tags")


def _spans(values: Sequence[Any], text: str, column: str) -> tuple[Span, ...]:
    spans = sorted(_span(value, number, text, column) for number, value in enumerate(values, 1))
    for before, after in itertools.pairwise(spans):
        if after.start < before.end:
            raise BadRow(
                "overlapping spans",
                f"{_shown(before, text)} and {_shown(after, text)} overlap, and a word has one tag",
            )
    return tuple(spans)


def _span(value: Any, number: int, text: str, column: str) -> Span:
    if isinstance(value, Mapping):
        ends = [next((value[key] for key in _KEYS[end] if key in value), None) for end in ("start", "end")]
        labels = value.get("labels")
        name = next((value[key] for key in _LABELS if key in value), None)
        if name is None and isinstance(labels, list) and len(labels) == 1:
            name = labels[0]
        parts: list[Any] = [*ends, name]
    elif isinstance(value, (list, tuple)) and len(value) == 3:
        parts = list(value)
    else:
        raise BadRow(
            "unusable label",
            f"span {number} of {column} is {shorten(value)}; a span has start, end and label",
        )
    start, end, name = parts
    whole = all(isinstance(each, int) and not isinstance(each, bool) for each in (start, end))
    if not whole or not isinstance(name, (str, int)) or isinstance(name, bool) or not str(name).strip():
        raise BadRow(
            "unusable label",
            f"span {number} of {column} is {shorten(value, 80)}; start and end are whole numbers, the label is text",
        )
    if not 0 <= start < end <= len(text):
        raise BadRow(
            "span outside the text",
            f"span {number} of {column} is from {start} to {end}, and the text has {len(text):,} characters",
        )
    span = Span(start, end, str(name))
    if not text[start:end].strip():
        raise BadRow("empty span", f"{_shown(span, text)} of {column} has spaces alone")
    check_encodable(span.label)
    return span


def _shown(span: Span, text: str) -> str:
    return f"'{shorten(text[span.start : span.end])}' ({span.start} to {span.end}, {span.label})"
