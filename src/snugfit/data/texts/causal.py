"""Causal language modelling: texts to blocks of tokens."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from snugfit.data.bad_rows import BadRow, Fault, check_policy, settle, text_of
from snugfit.data.examples import Examples, FromRows
from snugfit.data.files.file_formats import TEXT_COLUMN, is_plain_text
from snugfit.data.files.file_rows import Collate, FileRows
from snugfit.data.lazy.lazy_sequence import Chained, Made
from snugfit.data.named_sources import Sources
from snugfit.data.report import DataReport
from snugfit.data.row_settings import RowSettings
from snugfit.data.sources import Table, check_columns, fingerprints_of, read_table
from snugfit.data.splits.hold_out import share_of
from snugfit.data.splits.leaks import inputs_of_texts
from snugfit.data.splits.sides import places_by_source
from snugfit.data.stream import Streamed
from snugfit.data.texts.plain_documents import PlainDocuments, parting_lines
from snugfit.data.texts.token_cache import TokenEntry, cached, texts_digest
from snugfit.data.texts.token_rows import ArrayExamples, FramedBlocks, TokenBlocks, TokenRows, TokenWriter
from snugfit.data.texts.tokens import Frame, check_max_length, padding_for, special_frame
from snugfit.errors import DataError
from snugfit.units import counted

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

JOINED, APART = "joined", "apart"
"""How the texts of several documents become examples."""

_PIECE = 2**22
_BATCH = 1000

_EXAMPLE_ROWS = 8
_BEGINNING = 200
"""Characters of a text that an example shows."""


@dataclass(frozen=True)
class CausalSettings(RowSettings):
    """The `data` part of a recipe for causal language modelling.

    A .txt file is one text, of which a fraction to validate on is the end, or the texts between the lines that part them. Of every other source
    each row is one text.

    Args:
        documents: JOINED, where texts follow one another in blocks, or APART, where no example holds parts of two.
        separator: the line that parts the texts of a .txt file, as of `parting_lines`.
    """

    documents: str = JOINED
    separator: str | None = None


@dataclass(frozen=True)
class CausalData:
    """Blocks of at most `max_length` tokens; `labels` are the tokens themselves, -100 at padding."""

    train: Examples | Streamed
    validation: Examples
    collate: Collate
    report: DataReport
    fingerprints: Mapping[str, str]
    tokenizer: PreTrainedTokenizerBase
    example_rows: Sequence[dict[str, Any]] = ()


def load_causal(
    settings: CausalSettings, tokenizer: PreTrainedTokenizerBase, *, folder: Path | None = None
) -> CausalData:
    """Read, validate, split and tokenise, and cut the stream of tokens into blocks that do not overlap.

    Texts follow one another, each in the special tokens its tokenizer gives it and ended by the
    end-of-sequence token where there is one. The last, shorter block is kept unless it is a single token,
    which predicts nothing. Where documents stay apart each is cut so by itself.

    Raises:
        DataError: a source cannot be used, rows are faulty and the policy is 'fail', or too little is left.
    """
    check_max_length(settings.max_length, tokenizer, len(special_frame(tokenizer)))
    tables = [read_table(source, setting=setting, folder=folder) for setting, source in settings.sources]
    texts: list[list[Examples]] = []
    faults: list[Fault] = []
    parting = parting_lines(settings.separator, tokenizer)
    for table in tables:
        read = [_texts(part, settings.text, parting) for part in table.each]
        texts.append([examples for examples, _ in read])
        faults += [fault for _, bad in read for fault in bad]
    skipped = settle(faults, settings.bad_rows)
    frame = ended_frame(tokenizer)
    streams = [[_tokenized(each, tokenizer, frame) for each in own] for own in texts]
    held = None if len(tables) < 2 else Examples.joined(tables[1], texts[1])
    places, warnings = places_by_source(
        tables[0],
        texts[0],
        held,
        settings.validation,
        settings.seed,
        lambda number: settings.rows_apart(len(texts[0][number])),
        inputs=inputs_of_texts([Chained(own) for own in texts]),
        leaks=settings.leaks,
    )
    sides = [_sides(stream, own, settings) for stream, own in zip(streams[0], places, strict=True)]
    sizes = [sum(map(len, both)) for both in sides]
    blocks, validation = (
        Examples.joined(tables[0], own, sizes) for own in ([both[side] for both in sides] for side in (0, 1))
    )
    if len(streams) > 1:
        held_out = [_blocks(each, settings.max_length, settings.documents) for each in streams[1]]
        validation = Examples.joined(tables[1], held_out, list(map(len, held_out)))
    if not blocks or (settings.validation is not None and not validation):
        raise DataError(
            "data",
            f"the texts of {' and '.join(table.source for table in tables)} are too short: {len(blocks)} blocks "
            f"of {settings.max_length} tokens to train on, {len(validation)} to validate on",
            "Give more text, or lower data.max_length.",
        )
    lengths = [length for own in streams for part in own for length in _rows_of(part).lengths().tolist()]
    # a single last token is left out
    longer = [length - 1 for length in lengths if length - 1 > settings.max_length]
    apart = settings.documents == APART
    return CausalData(
        train=blocks,
        validation=validation,
        collate=padding_for(tokenizer),
        report=DataReport(
            train=len(blocks),
            validation=len(validation),
            skipped=skipped,
            unit="examples" if apart else "blocks",
            windowed=len(longer) if apart else 0,
            windows=sum(-(-length // settings.max_length) for length in longer) if apart else 0,
            warnings=warnings,
            form=_form(texts[0]),
        ).with_tokens(lengths, settings.max_length, cut=False),
        fingerprints=fingerprints_of(tables),
        tokenizer=tokenizer,
        example_rows=beginnings(texts[-1][0], settings.text),
    )


def _form(texts: Sequence[Examples]) -> str:
    """Return what the plain texts among the sources were taken for, where they have several documents."""
    counts = {each.source: len(each) for each in texts if isinstance(each.examples, PlainDocuments)}
    return ", ".join(f"{counted(count, 'document')} in {name}" for name, count in counts.items() if count > 1)


def beginnings(texts: Examples | Iterable[str], columns: Sequence[str]) -> list[dict[str, Any]]:
    """Return the beginnings of the first texts as rows to go on with."""
    read = (
        _pieces(texts, _BEGINNING)
        if isinstance(texts, Examples)
        else (Piece(each, True, True) for each in texts)
    )
    begin = (piece.text for piece in read if piece.first)
    first = [text[:_BEGINNING] for text in itertools.islice(begin, _EXAMPLE_ROWS)]
    return [{columns[0]: text, **dict.fromkeys(columns[1:], "")} for text in first]


def _sides(
    texts: Examples, places: tuple[Sequence[int], Sequence[int]], settings: CausalSettings
) -> tuple[Examples, Examples]:
    """Return the blocks of one source to train on, and those that a share holds out, given the places of its texts on both sides."""
    train, held_out = (_blocks(texts.at(own), settings.max_length, settings.documents) for own in places)
    if settings.share is None or len(texts) > 1:
        return train, held_out
    # one long text: its end, so that no block is surrounded by text that was trained on
    blocks = _blocks(texts, settings.max_length)
    count, every = max(round(share_of(settings.share) * len(blocks)), 1), range(len(blocks))
    return blocks.at(every[:-count]), blocks.at(every[-count:])


def _texts(
    table: Table, columns: tuple[str, ...], parting: frozenset[str] = frozenset()
) -> tuple[Examples, list[Fault]]:
    """Return the texts of a source, and the faults of rows that have none.

    Args:
        parting: the lines that part those of a plain text.
    """
    if not is_plain_text(table.source):
        return _rows(table, columns)
    documents = PlainDocuments(table.rows, parting)
    if len(documents) == 1:
        return Examples(documents, table.source, [0]), list(table.faults)
    return Examples.of(documents, table, documents.starts), list(table.faults)


def _rows(table: Table, columns: tuple[str, ...]) -> tuple[Examples, list[Fault]]:
    """Return the text of each row, and the faults of rows that have none."""
    faults = list(table.faults)
    if table.rows:
        check_columns(table, {"data.text": columns})
    usable = []
    for number, row in enumerate(table.rows):
        try:
            text_of(row, columns)
            usable.append(number)
        except BadRow as bad:
            faults.append(table.fault(number, bad))
    # once more when they are asked for: of a large file few are in memory at a time
    texts = Made(usable, lambda number: text_of(table.rows[number], columns))
    return Examples.of(texts, table, usable), table.in_order(faults)


def _tokenized(texts: Examples, tokenizer: PreTrainedTokenizerBase, frame: Frame) -> Examples:
    """Return the tokens of texts in place of the texts, each with these special tokens around it."""

    def make() -> TokenEntry:
        return TokenEntry(tokenized_pieces(_pieces(texts, _PIECE), tokenizer, frame))

    plain = texts.examples if isinstance(texts.examples, PlainDocuments) else None
    digest = texts_digest(texts) if plain is None else plain.digest()
    parts = {"texts": digest, "piece": _PIECE, "around": [frame.prefix, frame.suffix]}
    entry = cached("stream", parts, tokenizer, make)
    return Examples(entry.rows, texts.source, texts.rows, texts.lines, texts.unit)


class Piece(NamedTuple):
    """A part of a text that is tokenised by itself, and whether it is the first or the last one of its text."""

    text: str
    first: bool
    last: bool


UNFRAMED = Frame((), ())


def ended_frame(tokenizer: PreTrainedTokenizerBase) -> Frame:
    """Return the special tokens around a text that others follow: those of its tokenizer, and the end of the sequence where these have no end."""
    frame, end = special_frame(tokenizer), tokenizer.eos_token_id
    return frame if frame.suffix or end is None else Frame(frame.prefix, (int(end),))


def tokenized_pieces(pieces: Iterable[Piece], tokenizer: PreTrainedTokenizerBase, frame: Frame) -> TokenRows:
    """Return the tokens of texts, each with these special tokens around it; the last one may go on behind its last piece."""
    writer = TokenWriter()
    piece = None
    for batch in _batches(pieces):
        ids_of_pieces = tokenizer([each.text for each in batch], add_special_tokens=False, verbose=False)
        for piece, ids in zip(batch, ids_of_pieces["input_ids"], strict=True):
            before, after = frame.prefix if piece.first else (), frame.suffix if piece.last else ()
            writer.extend({"input_ids": [*before, *ids, *after]})
            if piece.last:
                writer.end()
    if piece is not None and not piece.last:
        writer.end()
    return writer.rows()


def _pieces(texts: Examples, size: int) -> Iterator[Piece]:
    """Yield the pieces of texts in order, each of at least `size` characters but for the last one of a text."""
    plain = texts.examples if isinstance(texts.examples, PlainDocuments) else None
    for place in range(len(texts)):
        pieces = cut_text(texts[place], size) if plain is None else plain.pieces(place, size)
        piece, first = next(pieces, ""), True
        for following in pieces:
            yield Piece(piece, first, last=False)
            piece, first = following, False
        yield Piece(piece, first, last=True)


def _batches(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Yield pieces in order, so many at a time that the tokenizer's memory is bounded."""
    batch: list[Piece] = []
    characters = 0
    for piece in pieces:
        batch.append(piece)
        characters += len(piece.text)
        if len(batch) == _BATCH or characters >= _PIECE:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def cut_text(text: str, size: int) -> Iterator[str]:
    r"""Cut a text after a line break into pieces of at least `size` characters; without one it stays whole.

    >>> list(cut_text("one\ntwo\nthree", 5))
    ['one\ntwo\n', 'three']
    """
    start = 0
    while start < len(text):
        end = text.find("\n", start + size - 1) + 1
        if end == 0:
            end = len(text)
        yield text[start:end]
        start = end


def _blocks(texts: Examples, max_length: int, documents: str = JOINED) -> Examples:
    """Return the blocks of texts, each with the line of the text in which it begins; those of one long text with their number."""
    blocks, beginnings = blocks_of(_rows_of(texts), max_length, documents)
    lines = None if texts.lines is None else [texts.lines[number] for number in beginnings]
    return Examples(blocks, texts.source, range(len(blocks)), lines, unit="block")


def blocks_of(texts: TokenRows, max_length: int, documents: str) -> tuple[ArrayExamples, Iterable[int]]:
    """Return the blocks of texts that are joined or stay apart, and the number of the text in which each begins."""
    if documents == APART:
        examples, numbers = texts.cut(max_length)
        return examples, numbers.tolist()
    blocks = TokenBlocks(texts, max_length)
    return blocks, map(blocks.text_of, range(len(blocks)))


def framed_blocks(table: Table, tokenizer: PreTrainedTokenizerBase, max_length: int) -> tuple[Examples, int]:
    """Return a plain text in blocks of at most `max_length` tokens, each between the special tokens that a text of its own has, and its tokens."""
    frame = special_frame(tokenizer)
    texts, _ = _texts(table, ())
    stream = _tokenized(texts, tokenizer, UNFRAMED)
    blocks = _blocks(stream, max_length - len(frame))
    assert isinstance(blocks.examples, TokenBlocks)
    examples = FramedBlocks(blocks.examples, frame.prefix, frame.suffix)
    tokens = int(_rows_of(stream).lengths().sum())
    return Examples(examples, blocks.source, blocks.rows, blocks.lines, blocks.unit), tokens


def _rows_of(texts: Examples) -> TokenRows:
    rows = texts.examples
    assert isinstance(rows, TokenRows)  # which `_tokenized` returns
    return rows


class Prompts(FromRows):
    """Texts to go on with, each as tokens behind the special ones that its tokenizer begins a text with."""

    def __init__(self, texts: Examples, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__(texts)
        self.tokenizer, self.frame = tokenizer, special_frame(tokenizer)

    def __getitem__(self, place: int) -> list[int]:
        text = self.rows[place].removesuffix("\n")  # of a line of a plain text
        ids = self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
        return [*self.frame.prefix, *ids]


def read_causal_rows(
    source: str | Sources,
    columns: tuple[str, ...],
    max_length: int,
    tokenizer: PreTrainedTokenizerBase,
    *,
    scored: bool,
    bad_rows: str,
    folder: Path | None,
    documents: str = JOINED,
    separator: str | None = None,
) -> FileRows:
    """Read one source to evaluate on, in blocks as it is trained on, or to go on with each of its rows; of a .txt file a row is a line.

    Raises:
        DataError: as for `load_causal`.
    """
    check_policy(bad_rows)
    table = read_table(source, setting="data", folder=folder)
    lengths: list[int] = []
    texts: Examples
    if scored:
        texts, faults = _texts(table, columns, parting_lines(separator, tokenizer))
        stream = _tokenized(texts, tokenizer, ended_frame(tokenizer))
        examples: Any = _blocks(stream, max_length, documents)
        lengths, origins = _rows_of(stream).lengths().tolist(), examples
    else:
        texts, faults = _rows(table, (TEXT_COLUMN,) if is_plain_text(table.source) else columns)
        examples, origins = Prompts(texts, tokenizer), texts
    skipped = settle(faults, bad_rows)
    if not examples:
        raise DataError("data", f"{table.source} has no text that can be used", "Give another file.")
    unit = "blocks" if scored else "rows"
    return FileRows(
        examples=examples,
        rows=[{}] * len(examples) if scored else [table.rows[row] for row in texts.rows],
        lines=[1] * len(examples) if origins.lines is None else list(origins.lines),
        columns=() if scored else table.columns,
        collate=padding_for(tokenizer),
        report=DataReport(
            train=0, validation=len(examples), skipped=skipped, tokens_total=sum(lengths), unit=unit
        ),
        fingerprints=table.fingerprints,
    )
