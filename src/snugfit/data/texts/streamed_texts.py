"""Texts, whole or with hidden tokens, conversations and pairs of answers that are tokenised as they are read: data sets that are larger than memory, or never end.

Of several sources with weights each is read, tokenised and shuffled by itself, in its own form, and their examples take turns.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from snugfit.core.random import derive_seed
from snugfit.data.assumed import assumed_pairs, assumed_text
from snugfit.data.bad_rows import BadRow, text_of
from snugfit.data.examples import Examples, whole_examples
from snugfit.data.files.file_rows import FileRows
from snugfit.data.files.row_stream import RowStream
from snugfit.data.mixed_streams import MixedStreams
from snugfit.data.named_sources import Source, Sources
from snugfit.data.report import STREAMED, DataReport
from snugfit.data.row_settings import RowSettings
from snugfit.data.sources import Table, check_columns, new_names, renamed_row
from snugfit.data.stream import Encode, Stream, Streamed, examples_of, rows_of
from snugfit.data.texts.causal import (
    CausalData,
    CausalSettings,
    beginnings,
    read_causal_rows,
)
from snugfit.data.texts.chat_template import set_template
from snugfit.data.texts.conversation_tokens import Coder
from snugfit.data.texts.conversations import (
    MESSAGES,
    columns_of_form,
    hint_of_form,
    prompt_columns,
    recognise,
)
from snugfit.data.texts.instruct import (
    InstructData,
    InstructSettings,
    asked_of,
    conversation_in,
    read_conversations,
    warnings_of,
)
from snugfit.data.texts.masked import MaskedData, MaskedSettings, MaskedTexts, Masks, load_masked_rows
from snugfit.data.texts.plain_documents import parting_lines
from snugfit.data.texts.preferences import (
    AnswerWriter,
    PadPairs,
    PreferenceData,
    PreferenceSettings,
    check_pair_columns,
    read_pairs,
    rows_with_prompt,
)
from snugfit.data.texts.stream_encoders import (
    BlockEncoder,
    ConversationEncoder,
    FramedEncoder,
    PairEncoder,
    text_columns,
)
from snugfit.data.texts.tokens import check_max_length, padding_for, special_frame
from snugfit.errors import SettingError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_SETTING = "data.train"
_SHOWN = 32
"""First rows that columns, forms and examples are found by."""

S = TypeVar("S", bound=RowSettings)


@dataclass(frozen=True)
class StreamSettings:
    """The settings of sources that are read as streams.

    Args:
        buffer: rows that are tokenised together, and whose examples are shuffled among each other.
        updates, window: of the run, and examples of its largest update.
    """

    buffer: int
    updates: int | None
    window: int | None


def stream_causal(
    settings: CausalSettings,
    stream: StreamSettings,
    tokenizer: PreTrainedTokenizerBase,
    *,
    folder: Path | None = None,
) -> CausalData:
    """Return texts in blocks of at most `max_length` tokens, made as they are read.

    The texts of a buffer follow one another as those of a file do (`load_causal`); its last, shorter block is an example too.

    Raises:
        DataError, SettingError: the source cannot be used, or not as a stream.
    """
    check_max_length(settings.max_length, tokenizer, len(special_frame(tokenizer)))
    parts = _opened(settings, folder, parting_lines(settings.separator, tokenizer))
    for part in parts:
        _check(part, {"data.text": text_columns(part.settings)})
    train = _examples(settings, parts, stream, lambda part: BlockEncoder(part.settings, tokenizer))
    held_out = _held_out(
        settings,
        lambda source: read_causal_rows(
            source,
            settings.text,
            settings.max_length,
            tokenizer,
            scored=True,
            bad_rows=settings.bad_rows,
            folder=folder,
            documents=settings.documents,
            separator=settings.separator,
        ),
    )
    return CausalData(
        train=train,
        validation=_validation(held_out),
        collate=padding_for(tokenizer),
        report=_report(train, held_out, settings),
        fingerprints={} if held_out is None else held_out.fingerprints,
        tokenizer=tokenizer,
        example_rows=beginnings(_texts_of(parts[0].shown, text_columns(parts[0].settings)), settings.text),
    )


def stream_instruct(
    settings: InstructSettings,
    stream: StreamSettings,
    tokenizer: PreTrainedTokenizerBase,
    *,
    folder: Path | None = None,
) -> InstructData:
    """Return conversations as examples that are made as they are read, each as `load_instruct` makes it.

    Raises:
        DataError, SettingError: the source cannot be used, or not as a stream; the chat template cannot be used.
    """
    template_file = set_template(tokenizer, settings.template, folder)
    check_max_length(settings.max_length, tokenizer, len(special_frame(tokenizer)))
    parts, coder = _opened(settings, folder), Coder(tokenizer, settings)
    forms = {part: _form_of(part) for part in parts}
    for part, form in forms.items():
        wanted = columns_of_form(form, prompt_columns(part.shown.columns, settings.text), settings.completion)
        _check(part, wanted, hint_of_form(part.shown.rows))
    train = _examples(
        settings,
        parts,
        stream,
        lambda part: ConversationEncoder(part.settings, coder, conversation_in(settings, forms[part])),
    )
    held_out = _held_out(
        settings,
        lambda source: read_conversations(
            source, settings, coder, answered=True, bad_rows=settings.bad_rows, folder=folder
        ),
    )
    first = [train[place]["input_ids"] for place in range(min(_SHOWN, len(train)))]
    return InstructData(
        train=train,
        validation=_validation(held_out),
        collate=padding_for(tokenizer),
        report=_report(train, held_out, settings, warnings_of(first, coder), _forms(forms)),
        form=next((form for form in forms.values() if form != MESSAGES), MESSAGES),
        fingerprints=template_file | ({} if held_out is None else dict(held_out.fingerprints)),
        stops=coder.stops,
        asked=asked_of(parts[0].shown.rows, forms[parts[0]], settings, coder),
    )


def stream_masked(
    settings: MaskedSettings,
    stream: StreamSettings,
    tokenizer: PreTrainedTokenizerBase,
    *,
    folder: Path | None = None,
) -> MaskedData:
    """Return texts as `load_masked` makes them, as they are read; tokens are hidden anew in each pass.

    Raises:
        DataError, ModelError, SettingError: as of `load_masked`, or the source cannot be used as a stream.
    """
    masks = Masks.of(tokenizer, settings.mask_probability)
    check_max_length(settings.max_length, tokenizer, len(special_frame(tokenizer)))
    parts = _opened(settings, folder)
    for part in parts:
        _check(part, {"data.text": text_columns(part.settings)})
    train = _examples(
        settings, parts, stream, lambda part: FramedEncoder(part.settings, tokenizer), draw=masks.drawn
    )
    held_out = _held_out(
        settings,
        lambda source: load_masked_rows(source, settings, tokenizer, scored=True, folder=folder),
    )
    first = FramedEncoder(parts[0].settings, tokenizer)(list(itertools.islice(parts[0].rows, _SHOWN)))
    some = Examples(first, parts[0].rows.source, range(len(first)))
    return MaskedData(
        train=train,
        validation=_hidden(None if held_out is None else held_out.examples, masks, settings),
        collate=padding_for(tokenizer),
        report=_report(train, held_out, settings),
        fingerprints={} if held_out is None else held_out.fingerprints,
        shown=MaskedTexts(some, masks, settings.seed),
    )


def stream_preferences(
    settings: PreferenceSettings,
    stream: StreamSettings,
    tokenizer: PreTrainedTokenizerBase,
    *,
    folder: Path | None = None,
) -> PreferenceData:
    """Return pairs of answers as examples that are made as they are read, each as `load_preferences` makes it.

    Raises:
        DataError, SettingError: the source cannot be used, or not as a stream; the loss compares rows; the chat template cannot be used.
    """
    if not settings.pairs:
        raise SettingError(
            "data.stream",
            "reads some rows at a time, and kto compares each prompt's answer with that to another one of all rows",
            "Leave it out, or give pairs of answers.",
        )
    template_file = set_template(tokenizer, settings.template, folder)
    check_max_length(settings.max_length, tokenizer, len(special_frame(tokenizer)))
    parts, writer = _opened(settings, folder), AnswerWriter.of(settings, tokenizer)
    for part in parts:
        check_pair_columns(part.shown, settings)
    train = _examples(
        settings,
        parts,
        stream,
        lambda part: PairEncoder(part.settings, part.shown.columns, writer),
        largest=assumed_pairs(settings.max_length, 1, labelled=False).example,
    )
    held_out = _held_out(settings, lambda source: read_pairs(source, settings, writer, folder=folder))
    first = [train[place]["input_ids"][0] for place in range(min(_SHOWN, len(train)))]
    return PreferenceData(
        train=train,
        validation=_validation(held_out),
        collate=PadPairs(padding_for(tokenizer).fill["input_ids"]),
        report=_report(
            train,
            held_out,
            settings,
            warnings_of(first, writer.coder),
            _forms(dict.fromkeys(parts, "pairs of answers")),
        ),
        fingerprints=template_file | ({} if held_out is None else dict(held_out.fingerprints)),
        stops=writer.coder.stops,
        example_rows=rows_with_prompt(parts[0].shown.rows, settings.text),
    )


def _hidden(examples: Any, masks: Masks, settings: MaskedSettings) -> MaskedTexts:
    whole = None if examples is None else whole_examples(examples)
    return MaskedTexts(Examples([], _SETTING, []) if whole is None else whole, masks, settings.seed)


def _texts_of(table: Table, columns: Sequence[str]) -> Iterator[str]:
    """Yield the texts of rows that have one."""
    for row in table.rows:
        with suppress(BadRow):
            yield text_of(row, columns)


@dataclass(frozen=True, eq=False)
class _Part(Generic[S]):
    """A source that is read as a stream.

    Args:
        settings: of the rows, as if it were alone.
        shown: its first rows.
        source: what it is among several; None where it is alone.
    """

    settings: S
    rows: RowStream
    shown: Table
    source: Source | None = None


def _opened(settings: S, folder: Path | None, parting: frozenset[str] = frozenset()) -> list[_Part[S]]:
    """Return the sources.

    Args:
        parting: lines that part the documents of a plain text.
    Raises:
        DataError, SettingError: one cannot be read as a stream.
    """
    if isinstance(settings.train, str):
        return [_open(settings, None, folder, parting)]
    sources = settings.train
    assert isinstance(sources, Sources)  # a recipe names no function
    if sources.stopping != "first_exhausted":
        raise SettingError(
            "data.stopping_strategy",
            f"is {sources.stopping}, and streams have no epochs (data.stream): each is read anew where it ends",
            "Remove it.",
        )
    return [_open(settings, source, folder, parting) for source in _weighed(sources).each]


def _weighed(sources: Sources) -> Sources:
    """Return sources with weights: equal ones where they have none, as nobody knows how long a stream is."""
    if sources.weights is not None:
        return sources
    return replace(sources, each=tuple(replace(source, weight=Fraction(1)) for source in sources.each))


def _open(settings: S, source: Source | None, folder: Path | None, parting: frozenset[str]) -> _Part[S]:
    setting = _SETTING if source is None else f"{_SETTING}.{source.name}"
    file = str(settings.train if source is None else source.file)
    as_written = RowStream(file, setting=setting, folder=folder, parting=parting)
    first = list(itertools.islice(rows_of(Stream(as_written), 0, setting), _SHOWN))
    columns = [row.columns for row in first if row.columns is not None]
    names = tuple(dict.fromkeys(name for row in columns for name in row))
    rows, renamed = as_written, {} if source is None else source.rename
    if renamed and names:
        names = new_names(file, names, renamed, setting)
        rows = RowStream(file, setting=setting, folder=folder, rename=renamed, parting=parting)
        columns = [renamed_row(renamed, row) for row in columns]
    table = Table(file, names, [dict(row) for row in columns], [row.line for row in first], "")
    return _Part(replace(settings, train=file), rows, table, source)


def _check(part: _Part[S], wanted: Mapping[str, Sequence[str]], hint: str = "") -> None:
    """See that a source has the columns that each setting names.

    Raises:
        DataError, SettingError: it has not.
    """
    if part.shown.rows:
        check_columns(part.shown, wanted, hint)


def _form_of(part: _Part[InstructSettings]) -> str:
    own = part.settings
    return own.format or recognise(part.shown.columns, own.text, own.completion)


def _forms(forms: Mapping[_Part[Any], str]) -> str:
    """Return the forms of the rows of sources in words: where they are several that of each, with its part of the examples."""
    whole = sum(part.source.weight or 0 for part in forms if part.source is not None)
    return ", ".join(
        form
        if part.source is None or part.source.weight is None
        else f"{form} ({part.source.name}, {100 * float(part.source.weight / whole):.3g}% of the examples)"
        for part, form in forms.items()
    )


def _examples(
    settings: S,
    parts: Sequence[_Part[S]],
    stream: StreamSettings,
    encode: Callable[[_Part[S]], Encode],
    *,
    draw: Callable[[Any], Any] | None = None,
    largest: Any = None,
) -> Streamed:
    """Return the examples of a run.

    Args:
        encode: returns that of a source.
        largest: an example that none is larger than; of one text by default.

    Raises:
        DataError, SettingError: the run has no length in updates, or a setting needs all rows.
    """
    names = " and ".join(part.rows.source for part in parts)
    if settings.share is not None:
        raise SettingError(
            "data.validation",
            f"{settings.validation} is a part of the rows, and {names} {'is' if len(parts) == 1 else 'are'} read as a stream (data.stream): it has no length",
            "Name a file of rows to validate on, or write null.",
        )
    if settings.leaks.policy != "warn" or settings.leaks.near:
        raise SettingError(
            "data.leaks",
            f"compares all rows, and {names} {'is' if len(parts) == 1 else 'are'} read as a stream (data.stream)",
            "Leave data.leaks and data.near_duplicates out.",
        )
    streams = [
        examples_of(
            Stream(part.rows, stream.buffer),
            updates=stream.updates,
            window=stream.window,
            seed=settings.seed
            if part.source is None
            else derive_seed(settings.seed, "stream of", part.source.name),
            setting=part.rows.setting,
            prefix="train.",
            encode=encode(part),
            largest=largest or assumed_text(settings.max_length, 1, classes=False).example,
            draw=draw,
        )
        for part in parts
    ]
    for each in streams:
        each[0]  # the first rows are tokenised now, where what is wrong with them ends nothing that has begun
    if isinstance(settings.train, Sources):
        return MixedStreams(_weighed(settings.train), streams)
    return streams[0]


def _held_out(settings: RowSettings, read: Callable[[str | Sources], FileRows]) -> FileRows | None:
    """Return the rows to validate on, which are read as those of any file; of several sources one after the other."""
    source = settings.validation
    if source is None:
        return None
    if not isinstance(source, Sources):
        assert isinstance(source, str)  # no share of a stream, and a recipe names no function
        return read(source)
    each = [read(Sources((one,))) for one in source.each]
    parts = [whole_examples(rows.examples) for rows in each]
    own = [part for part in parts if part is not None]
    assert len(own) == len(parts)  # which rows with answers are
    # rows that are left out are counted too
    sizes = [max(part.rows, default=-1) + 1 for part in own]
    tables = tuple(
        Table(file, (), [{}] * size, [], "") for file, size in zip(source.files, sizes, strict=True)
    )
    joined = Examples.joined(Table(str(source), (), [], [], "", sources=source, parts=tables), own, sizes)
    skipped = sum((Counter(rows.report.skipped) for rows in each), Counter[str]())
    return replace(
        each[0],
        examples=joined,
        report=replace(each[0].report, validation=len(joined), skipped=dict(skipped)),
        fingerprints={name: sha256 for rows in each for name, sha256 in rows.fingerprints.items()},
    )


def _validation(held_out: FileRows | None) -> Examples:
    if held_out is None:
        return Examples([], _SETTING, [])
    assert isinstance(held_out.examples, Examples)  # which rows with answers are
    return held_out.examples


def _equal_parts(settings: RowSettings) -> tuple[str, ...]:
    """Return what is to be said of sources without weights."""
    sources = settings.train
    if not isinstance(sources, Sources) or sources.weights is not None:
        return ()
    return (
        f"data.train: {', '.join(sources.names)} have no weights and are read as streams, whose lengths nobody knows: each gives as many examples as the others",
    )


def _report(
    train: Streamed,
    held_out: FileRows | None,
    settings: RowSettings,
    warnings: tuple[str, ...] = (),
    form: str = "",
) -> DataReport:
    return DataReport(
        train=len(train),
        validation=0 if held_out is None else len(held_out.examples),
        skipped={} if held_out is None else held_out.report.skipped,
        max_length=settings.max_length,
        unit=STREAMED,
        warnings=(*_equal_parts(settings), *warnings),
        form=form,
    )
