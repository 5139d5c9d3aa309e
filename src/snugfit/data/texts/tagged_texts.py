"""Token classification: texts with tagged words or labelled spans to windows for a model."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snugfit.data.bad_rows import BadRow, Fault, check_policy, check_rows_left, settle, shorten
from snugfit.data.examples import Examples
from snugfit.data.files.file_rows import Collate, FileRows
from snugfit.data.labels.class_names import check_classes
from snugfit.data.report import DataReport
from snugfit.data.row_settings import RowSettings
from snugfit.data.sources import RowSource, Table, fingerprints_of
from snugfit.data.splits.leaks import inputs_of_texts
from snugfit.data.texts.tagged_rows import Form, TaggedPart, TaggedText, read_tagged
from snugfit.data.texts.tags import Scheme, Span, completed, scheme_of, tags_of
from snugfit.data.texts.token_cache import cached, texts_digest
from snugfit.data.texts.token_rows import TokenRows
from snugfit.data.texts.token_windows import (
    TokenizedText,
    Window,
    Word,
    labelled,
    packed,
    tokenize,
    unpacked,
    windows_of,
)
from snugfit.data.texts.tokens import Frame, check_max_length, padding_for, special_frame, token_warnings
from snugfit.errors import DataError, SettingError, nearest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_EXAMPLE_ROWS = 32


@dataclass(frozen=True)
class TagSettings(RowSettings):
    """The `data` part of a recipe for token classification.

    Args:
        scheme: of the tags that spans of characters become.
        classes: tags that the model is to know besides those of the rows to train on.
    """

    label: str = "label"
    scheme: Scheme = "bio"
    classes: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_one_column(self.text)


def check_one_column(columns: Sequence[str]) -> None:
    """See that texts stand in one column.

    Raises:
        SettingError: they do not.
    """
    if len(columns) != 1:
        raise SettingError(
            "data.text",
            f"got {len(columns)} columns, and tags belong to the words of one",
            "Name one column.",
        )


@dataclass(frozen=True)
class TagData:
    """Windows to train and validate on; label i of a word is the tag `tags[i]`.

    `form` is that of the rows: it says what a word is in texts to predict for.
    """

    train: Examples
    validation: Examples
    tags: tuple[str, ...]
    scheme: Scheme
    form: Form
    collate: Collate
    report: DataReport
    fingerprints: Mapping[str, str]
    example_rows: list[dict[str, Any]]


@dataclass(frozen=True)
class RowWindows:
    """A text to predict for: its characters, its words, and the windows that it is read in."""

    text: str
    words: Sequence[Word]
    windows: Sequence[Window]
    listed: bool

    @property
    def tokens(self) -> int:
        return sum(len(window.example["input_ids"]) for window in self.windows)


class Reader:
    """The way of texts into windows, by a model's tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, max_length: int) -> None:
        self.tokenizer, self.max_length = tokenizer, max_length
        self.frame: Frame = special_frame(tokenizer)
        check_max_length(max_length, tokenizer, len(self.frame))
        self.token_types = "token_type_ids" in tokenizer.model_input_names

    def tokenized(self, texts: Sequence[TaggedText], *, keep: bool = False) -> list[TokenizedText]:
        """Return the tokens and words of texts.

        Args:
            keep: in the cache, or taken from there.
        """
        plain, words = [each.text for each in texts], [each.words for each in texts]

        def make() -> list[TokenizedText]:
            return tokenize(plain, words, self.tokenizer)

        if not keep:
            return make()
        by = {"texts": texts_digest(plain, map(json.dumps, words))}
        return unpacked(cached("words", by, self.tokenizer, lambda: packed(make())))

    def windows(self, text: TokenizedText) -> list[Window]:
        """Return the windows of a text."""
        return windows_of(text, self.max_length, self.frame, token_types=self.token_types)

    def rows(self, texts: Sequence[TaggedText]) -> list[RowWindows]:
        """Return texts to predict for."""
        return [
            RowWindows(tagged.text, own.words, self.windows(own), tagged.words is not None)
            for tagged, own in zip(texts, self.tokenized(texts), strict=True)
        ]


@dataclass
class _Labelled:
    """The texts of a part that have a token, with the tags of their words, and what is to be told of them."""

    table: Table
    rows: list[int] = field(default_factory=list)
    texts: list[TokenizedText] = field(default_factory=list)
    tags: list[list[str]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    widened: int = 0
    without_tokens: int = 0

    def examples(self, places: Sequence[int], reader: Reader, names: Sequence[str]) -> Examples:
        """Return the windows of the texts at these places, with the classes of their words."""
        number = {name: place for place, name in enumerate(names)}
        examples: list[Any] = []
        rows: list[int] = []
        for place in places:
            classes = [number[tag] for tag in self.tags[place]]
            windows = reader.windows(self.texts[place])
            examples += [labelled(window, classes) for window in windows]
            rows += [self.rows[place]] * len(windows)
        return Examples.of(TokenRows.of(examples), self.table, rows)

    def without_unknown(self, names: Sequence[str]) -> _Labelled:
        """Return the texts all of whose tags a model knows; the others are faults."""
        known = set(names)
        rest = _Labelled(
            self.table, faults=self.faults, widened=self.widened, without_tokens=self.without_tokens
        )
        for row, text, tags in zip(self.rows, self.texts, self.tags, strict=True):
            unknown = next((tag for tag in tags if tag not in known), None)
            if unknown is not None:
                detail = f"the tag '{shorten(unknown)}' was not trained. {nearest(unknown, names)}"
                rest.faults.append(
                    Fault(*self.table.place(row), "unknown label", detail, self.table.rows[row])
                )
                continue
            rest.rows.append(row)
            rest.texts.append(text)
            rest.tags.append(tags)
        return rest

    def warnings(self) -> list[str]:
        messages = []
        if self.widened:
            messages.append(
                f"{self.widened:,} spans of {self.table.source} begin or end within a word: the whole word is learned."
            )
        if self.without_tokens:
            messages.append(
                f"{self.without_tokens:,} words of {self.table.source} have no token: they are not scored, and are "
                "predicted to be in no span."
            )
        return messages


def load_tagged(
    settings: TagSettings, tokenizer: PreTrainedTokenizerBase, *, folder: Path | None = None
) -> TagData:
    """Read, validate, split by texts, and cut into windows.

    Raises:
        DataError: a source cannot be used, rows are faulty and the policy is 'fail', or too little is left.
        ModelError: the tokenizer does not say which characters a token is made of.
    """
    reader = Reader(tokenizer, settings.max_length)
    (column,) = settings.text
    read = [
        read_tagged(source, setting, column, settings.label, folder=folder)
        for setting, source in settings.sources
    ]
    form = _form(read, settings.label)
    parts = [_labelled(part, reader, settings.scheme) for part in read]
    tags = {tag for each in parts[0].tags for tag in each}
    every = tags | {*(settings.classes or ())}
    scheme = settings.scheme if form == "spans" else scheme_of(every)
    names = completed(every, scheme)
    parts = [parts[0], *(part.without_unknown(names) for part in parts[1:])]
    skipped = settle([fault for part in parts for fault in part.faults], settings.bad_rows)
    check_classes(tags, parts[0].table.source, settings.label)
    train, held_out = parts[0], parts[-1]
    sides = settings.sides(
        [Examples.of(part.texts, part.table, part.rows) for part in parts],
        inputs_of_texts([[json.dumps(part.table.rows[row][column]) for row in part.rows] for part in parts]),
    )
    places, aside = sides.places, sides.shown if len(sides.validation) else ()
    for part, own in ((train, places), *([(held_out, aside)] if settings.validation is not None else [])):
        check_rows_left(own, part.table.source)
    examples = train.examples(places, reader, names)
    report, shown = _report(parts, reader, skipped), aside or places
    return TagData(
        train=examples,
        validation=held_out.examples(aside, reader, names),
        tags=names,
        scheme=scheme,
        form=form,
        collate=padding_for(tokenizer),
        report=replace(
            report,
            train=len(places),
            validation=len(aside),
            labels=_count([train.tags[place] for place in places], names),
            warnings=(*report.warnings, *sides.warnings),
        ),
        fingerprints=fingerprints_of(part.table for part in parts),
        example_rows=[
            {column: held_out.table.rows[held_out.rows[place]][column]} for place in shown[:_EXAMPLE_ROWS]
        ],
    )


def load_tagged_rows(
    source: RowSource,
    reader: Reader,
    *,
    text: str,
    form: Form,
    label: str | None = None,
    tags: Sequence[str] = (),
    scheme: Scheme = "bio",
    bad_rows: str = "fail",
    folder: Path | None = None,
) -> FileRows:
    """Read one source to evaluate on (with `label`; each example is a window) or to predict (without; each is a row's windows).

    Raises:
        DataError: as for `load_tagged`; a tag that the model does not know is a fault of its row.
    """
    check_policy(bad_rows)
    read = read_tagged(source, "data", text, label, form, folder)
    if label is None:
        skipped = settle(read.faults, bad_rows)
        rows, indices = reader.rows(read.texts), read.row_indices
        examples = Examples.of(rows, read.table, indices)
        report = DataReport(train=0, validation=len(indices), skipped=skipped)
    else:
        part = _labelled(read, reader, scheme).without_unknown(tags)
        skipped = settle(part.faults, bad_rows)
        indices = part.rows
        examples = part.examples(range(len(indices)), reader, tags)
        report = replace(
            _report([part], reader, skipped), validation=len(indices), labels=_count(part.tags, tags)
        )
    check_rows_left(indices, read.table.source)
    return FileRows(
        examples=examples,
        rows=[read.table.rows[row] for row in indices],
        lines=[read.table.lines[row] for row in indices],
        columns=read.table.columns,
        collate=padding_for(reader.tokenizer),
        report=report,
        fingerprints=read.table.fingerprints,
    )


def _form(parts: Sequence[TaggedPart], label: str) -> Form:
    """Return the form of rows that are all labelled in one way.

    Raises:
        DataError: some have tags of words, and others spans of characters.
    """
    forms = {form for part in parts for form in part.forms}
    if "spans" in forms and len(forms) > 1:
        raise DataError(
            "data.label",
            f"column '{label}' has tags of words in some rows and spans of characters in others",
            "Write all rows in one way.",
        )
    return "spaced" if "spaced" in forms else next(iter(forms), "words")


def _labelled(part: TaggedPart, reader: Reader, scheme: Scheme) -> _Labelled:
    result = _Labelled(part.table, faults=list(part.faults))
    for row, tagged, text in zip(
        part.row_indices, part.texts, reader.tokenized(part.texts, keep=True), strict=True
    ):
        try:
            if not any(word.first >= 0 for word in text.words):
                raise BadRow("empty text", f"the tokenizer leaves nothing of {shorten(tagged.text)!r}")
            tags = list(tagged.tags)
            if tagged.words is None:
                spans = [_in_words(span, text.words, tagged.text) for span in tagged.spans]
                _check_apart(spans, text.words, tagged.text)
                tags = tags_of(spans, len(text.words), scheme)
                result.widened += sum(
                    (text.words[own.start].start, text.words[own.end - 1].end) != _trimmed(span, tagged.text)
                    for span, own in zip(tagged.spans, spans, strict=True)
                )
        except BadRow as bad:
            result.faults.append(part.table.fault(row, bad))
            continue
        result.without_tokens += sum(word.first < 0 for word in text.words)
        result.rows.append(row)
        result.texts.append(text)
        result.tags.append(tags)
    result.faults = part.table.in_order(result.faults)
    return result


def _in_words(span: Span, words: Sequence[Word], text: str) -> Span:
    """Return a span of characters in words: all that it has a part of."""
    inside = [number for number, word in enumerate(words) if word.start < span.end and span.start < word.end]
    if not inside:
        raise BadRow(
            "empty span", f"the tokenizer leaves nothing of '{shorten(text[span.start : span.end])}'"
        )
    return Span(inside[0], inside[-1] + 1, span.label)


def _check_apart(spans: Sequence[Span], words: Sequence[Word], text: str) -> None:
    for before, after in itertools.pairwise(spans):
        if after.start < before.end:
            shared = words[after.start]
            raise BadRow(
                "overlapping spans", f"two spans have a part of the word '{text[shared.start : shared.end]}'"
            )


def _trimmed(span: Span, text: str) -> tuple[int, int]:
    """Return the characters of a span without spaces at its ends."""
    piece = text[span.start : span.end]
    return span.start + len(piece) - len(piece.lstrip()), span.end - len(piece) + len(piece.rstrip())


def _count(tags: Sequence[Sequence[str]], names: Sequence[str]) -> dict[str, int]:
    counts = Counter(tag for each in tags for tag in each)
    return {name: counts[name] for name in names}


def _report(parts: Sequence[_Labelled], reader: Reader, skipped: Mapping[str, int]) -> DataReport:
    texts = [text for part in parts for text in part.texts]
    lengths = [len(text.ids) + len(reader.frame) for text in texts]
    long = [text for text, length in zip(texts, lengths, strict=True) if length > reader.max_length]
    framed = [{"input_ids": [*reader.frame.prefix, *text.ids, *reader.frame.suffix]} for text in texts]
    return DataReport(
        train=0,
        validation=0,
        skipped=dict(skipped),
        windowed=len(long),
        windows=sum(len(reader.windows(text)) for text in long),
        warnings=(
            *(warning for part in parts for warning in part.warnings()),
            *token_warnings([TokenRows.of(framed)], reader.tokenizer, reader.frame),
        ),
    ).with_tokens(lengths, reader.max_length, cut=False)
