"""Instruction tuning: conversations to tokens, of which those of the answers alone are scored."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from snugfit.data.bad_rows import BadRow, Fault, check_rows_left, settle
from snugfit.data.examples import Examples
from snugfit.data.files.file_rows import Collate, FileRows
from snugfit.data.named_sources import Sources
from snugfit.data.report import DataReport
from snugfit.data.row_settings import RowSettings
from snugfit.data.sources import Table, check_columns, fingerprints_of, read_table
from snugfit.data.splits.leaks import Inputs, content_digest
from snugfit.data.splits.near_duplicates import near_texts
from snugfit.data.splits.sides import Sides
from snugfit.data.stream import Streamed
from snugfit.data.texts.chat_template import DATE, TURN_MARKS, set_template
from snugfit.data.texts.conversation_tokens import Coder
from snugfit.data.texts.conversations import (
    MESSAGES,
    Conversation,
    columns_of_form,
    conversation_of,
    hint_of_form,
    plain_rows,
    prompt_columns,
    recognise,
    rows_to_answer,
)
from snugfit.data.texts.token_cache import TokenEntry, cached
from snugfit.data.texts.token_rows import TokenWriter
from snugfit.data.texts.tokens import IGNORED_LABEL, check_max_length, padding_for, special_frame
from snugfit.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


LONGER = "longer than data.max_length"
"""The reason of what `too_long: drop` leaves out."""

_EXAMPLE_ROWS = 8


@dataclass(frozen=True)
class InstructSettings(RowSettings):
    """The `data` part of a recipe for instruction tuning: `text` are the columns of the prompt."""

    completion: str = "completion"
    format: str | None = None
    scored: str = "all"
    template: str | None = None
    too_long: str = "cut_end"


class Asked(NamedTuple):
    """A row to be answered, and the tokens of the answer that it has; none of one that cannot be written."""

    row: dict[str, Any]
    answer: Sequence[int]


@dataclass(frozen=True)
class InstructData:
    """Examples of at most `max_length` tokens; `labels` are the tokens of answers and of the ends of their turns, -100 elsewhere.

    `stops` are the tokens by which a generation ends, `form` is that of rows to be answered, beside `messages`;
    `asked` are some of those.
    """

    train: Examples | Streamed
    validation: Examples
    collate: Collate
    report: DataReport
    fingerprints: Mapping[str, str]
    stops: tuple[int, ...] = ()
    form: str = MESSAGES
    asked: Sequence[Asked] = ()

    @property
    def example_rows(self) -> Sequence[dict[str, Any]]:
        """Return the first of the rows to be answered whose messages are plain texts."""
        return plain_rows(each.row for each in self.asked)[:_EXAMPLE_ROWS]


def load_instruct(
    settings: InstructSettings, tokenizer: PreTrainedTokenizerBase, *, folder: Path | None = None
) -> InstructData:
    """Read, validate, split and tokenise.

    A tokenizer with a chat template gets whole conversations, of which the assistant's turns are scored as the template writes them,
    each up to the token by which it ends a turn. Without a template an answer follows its prompt after a line break and ends with the
    end-of-sequence token, and so does the last turn where the template ends none. What is longer than `max_length` is treated as
    `too_long` says; a prompt that leaves no room for a token of its answer is a faulty row.

    Raises:
        DataError: a source cannot be used, rows are faulty and the policy is 'fail', or too little is left.
        SettingError: the chat template cannot be used.
    """
    template_file = set_template(tokenizer, settings.template, folder)
    check_max_length(settings.max_length, tokenizer, len(special_frame(tokenizer)))
    tables = [read_table(source, setting=setting, folder=folder) for setting, source in settings.sources]
    coder = Coder(tokenizer, settings)
    faults: list[Fault] = []
    parts: list[Examples] = []
    lengths: list[int] = []
    dropped, forms = 0, []
    asked: list[Callable[[], list[str]]] = []
    for table in tables:
        read = [_read(part, settings, coder) for part in table.each]
        parts.append(Examples.joined(table, [each.examples for each in read]))
        lengths += [length for each in read for length in each.lengths]
        faults += [fault for each in read for fault in each.faults]
        dropped += sum(each.dropped for each in read)
        forms.append([each.form for each in read])
        asked.append(partial(_questions, table, read, settings))
    skipped = settle(faults, settings.bad_rows)
    if dropped:
        skipped[LONGER] = dropped
    sides = sides_of(parts, tables, settings, skipped, asked)
    train, held_out = sides.train, sides.validation
    return InstructData(
        train=train,
        validation=held_out,
        collate=padding_for(tokenizer),
        report=DataReport(
            train=len(train),
            validation=len(held_out),
            skipped=skipped,
            warnings=(
                *warnings_of((example["input_ids"] for part in parts for example in part), coder),
                *_cut_ends(lengths, settings),
                *sides.warnings,
            ),
            form=_forms(forms, tables),
        ).with_tokens(lengths, settings.max_length),
        form=next((form for form in forms[0] if form != MESSAGES), MESSAGES),
        fingerprints=fingerprints_of(tables) | template_file,
        stops=coder.stops,
        asked=asked_of(tables[-1].rows, forms[-1][0], settings, coder),
    )


def asked_of(
    rows: Iterable[Mapping[str, Any]], form: str, settings: InstructSettings, coder: Coder
) -> list[Asked]:
    """Return the first rows as their answers are asked for, with the answers that they have."""
    both = rows_to_answer(rows, form, settings.text, settings.completion)
    return [Asked(row, _answer_in(conversation, coder)) for row, conversation in both]


def _answer_in(conversation: Conversation, coder: Coder) -> list[int]:
    try:
        labels = coder.examples(conversation)[-1].labels
    except BadRow:
        return []
    return [label for label in labels if label != IGNORED_LABEL]


def _forms(forms: Sequence[Sequence[str]], tables: Sequence[Table]) -> str:
    """Return the forms of the rows of tables in words: where those of several sources differ, that of each."""
    if tables[0].sources is None or len({*forms[0]}) == 1:
        return " and ".join(dict.fromkeys(form for own in forms for form in own))
    return ", ".join(f"{form} ({name})" for name, form in zip(tables[0].sources.names, forms[0], strict=True))


def sides_of(
    parts: Sequence[Examples],
    tables: Sequence[Table],
    settings: RowSettings,
    skipped: Mapping[str, int],
    asked: Sequence[Callable[[], list[str]]],
) -> Sides:
    """Return the examples to train on and those to validate on, of one table that is split or of one for each.

    Args:
        skipped: rows that were left out, by reason.
        asked: the texts of the questions of each part.
    Raises:
        DataError: too little is left.
    """
    inputs = Inputs(
        "questions",
        lambda part: [content_digest(asked_tokens(example)) for example in parts[part]],
        lambda part: asked[part](),
        near_texts,
    )
    sides = settings.sides(parts, inputs)
    train, held_out = sides.train, sides.validation
    if not train or (settings.validation is not None and not held_out):
        names = " and ".join(table.source for table in tables)
        left_out = ", ".join(f"{reason} ({count})" for reason, count in skipped.items())
        raise DataError(
            "data",
            f"{names} {('has' if len(tables) == 1 else 'have')} {len(train)} usable rows to train on and "
            f"{len(held_out)} to validate on{(f'; left out: {left_out}' if left_out else '')}",
            f"Give more rows{(', or correct these' if left_out else '')}.",
        )
    return sides


def asked_tokens(example: Mapping[str, Any]) -> bytes:
    """Return the tokens of an example before the last answer that is scored; of a pair of sequences those of the first.

    >>> np.frombuffer(asked_tokens({"input_ids": [1, 2, 3, 4], "labels": [-100, 2, -100, 4]}), np.int64).tolist()
    [1, 2, 3]
    """
    ids, labels = (
        each[0] if isinstance(each[0], (list, tuple)) else each
        for each in (example["input_ids"], example["labels"])
    )
    end = len(labels)
    while end and labels[end - 1] == IGNORED_LABEL:
        end -= 1
    while end and labels[end - 1] != IGNORED_LABEL:
        end -= 1
    return np.asarray(ids[:end], np.int64).tobytes()


def question_in(messages: Iterable[Mapping[str, Any]]) -> str:
    """Return what messages say, but for those of the system."""
    return "\n".join(
        str(each.get("content") or "") for each in messages if each["role"] not in ("system", "developer")
    )


def _questions(table: Table, read: Sequence[_Read], settings: InstructSettings) -> list[str]:
    """Return what is asked in the row of each example: all before the last answer."""
    texts = []
    for own, part in zip(table.each, read, strict=True):
        make = conversation_in(settings, part.form)
        made = {row: make(own.rows[row]) for row in dict.fromkeys(part.places)}
        texts += [question_in(made[row].messages[: made[row].scored[-1]]) for row in part.places]
    return texts


class ConversationOf(Protocol):
    """The function from a row, and whether it is to have its answer, to its conversation."""

    __qualname__: str

    def __call__(self, row: Mapping[str, Any], answered: bool, /) -> Conversation: ...


def read_conversations(
    source: str | Sources,
    settings: InstructSettings,
    coder: Coder,
    *,
    answered: bool,
    bad_rows: str,
    folder: Path | None,
    conversation: ConversationOf | None = None,
) -> FileRows:
    """Read one source to evaluate on (`answered`), or to be answered; order and all its columns are kept.

    Args:
        conversation: of a row, and whether it is to have its answer, where rows have no `messages`.
    Raises:
        DataError: as of `load_instruct`.
    """
    table = read_table(source, setting="data", folder=folder)
    form = settings.format or recognise(table.columns, settings.text, settings.completion)
    needed = columns_of_form(form, prompt_columns(table.columns, settings.text), settings.completion)
    learned = answered and {*table.columns}.issuperset(itertools.chain(*needed.values()))
    if MESSAGES in table.columns and not learned:
        form = MESSAGES
        needed = columns_of_form(form, prompt_columns(table.columns, settings.text), settings.completion)
    if form == MESSAGES or conversation is None:
        check_columns(
            table,
            {name: columns for name, columns in needed.items() if answered or name != "data.completion"},
        )

        def conversation(row: Mapping[str, Any], answered: bool) -> Conversation:
            return conversation_of(
                row,
                form,
                text=settings.text,
                completion=settings.completion,
                scored=settings.scored,
                answered=answered,
            )

    make = conversation
    if answered:
        read = _coded(table, settings, coder, lambda row: make(row, True), f"{form} {make.__qualname__}")
    else:
        read = _prompts(table, coder, lambda row: make(row, False), form)
    skipped = settle(read.faults, bad_rows)
    if read.dropped:
        skipped[LONGER] = read.dropped
    check_rows_left(read.examples, table.source)
    return FileRows(
        examples=read.examples,
        rows=[table.rows[place] for place in read.places],
        lines=[table.lines[place] for place in read.places],
        columns=table.columns,
        collate=padding_for(coder.tokenizer),
        report=DataReport(
            train=0,
            validation=len(read.examples),
            skipped=skipped,
            tokens_total=sum(read.lengths),
            tokens_max=max(read.lengths),
        ),
        fingerprints=table.fingerprints,
    )


class _Read(NamedTuple):
    """The examples of a table with the places of their rows, the tokens of each before it is cut, the faults, and how many were too long."""

    examples: Examples
    places: list[int]
    lengths: list[int]
    faults: list[Fault]
    dropped: int
    form: str


def _read(table: Table, settings: InstructSettings, coder: Coder) -> _Read:
    form = settings.format or recognise(table.columns, settings.text, settings.completion)
    if table.rows:
        check_columns(
            table,
            columns_of_form(form, prompt_columns(table.columns, settings.text), settings.completion),
            hint_of_form(table.rows),
        )

    return _coded(table, settings, coder, conversation_in(settings, form), form)


def conversation_in(settings: InstructSettings, form: str) -> Callable[[Mapping[str, Any]], Conversation]:
    """Return the function from a row of that form to its conversation."""
    return partial(
        conversation_of,
        form=form,
        text=settings.text,
        completion=settings.completion,
        scored=settings.scored,
    )


def _coded(
    table: Table,
    settings: InstructSettings,
    coder: Coder,
    conversation: Callable[[Mapping[str, Any]], Conversation],
    form: str,
) -> _Read:
    """Return the rows of a table in tokens, which may have been made before.

    Args:
        conversation: of a row; `form` names how it is made.
    """

    def make() -> TokenEntry:
        writer, rows, lengths, dropped = TokenWriter(), [], [], 0
        bad_rows: list[tuple[int, str, str]] = []
        for number, row in enumerate(table.rows):
            try:
                sequences = coder.examples(conversation(row))
            except BadRow as bad:
                bad_rows.append((number, bad.reason, bad.detail))
                continue
            for each in sequences:
                if len(each.ids) > settings.max_length:
                    dropped += 1
                    continue
                writer.add(each.as_example())
                rows.append(number)
                lengths.append(each.length)
        numbers = {"rows": np.array(rows, dtype=np.int64), "lengths": np.array(lengths, dtype=np.int64)}
        return TokenEntry(writer.rows(), numbers, {"bad_rows": bad_rows, "dropped": dropped})

    entry = cached("conversations", {**decisive(table, settings), "form": form}, coder.tokenizer, make)
    places = entry.numbers["rows"].tolist()
    return _Read(
        Examples.of(entry.rows, table, places),
        places,
        entry.numbers["lengths"].tolist(),
        faults_of(table, entry),
        int(entry.facts["dropped"]),
        form,
    )


def _prompts(
    table: Table, coder: Coder, conversation: Callable[[Mapping[str, Any]], Conversation], form: str
) -> _Read:
    """Return the rows of a table in the tokens that ask for their answers."""
    faults, prompts, places = list(table.faults), [], []
    for place, row in enumerate(table.rows):
        try:
            prompts.append(coder.prompt(conversation(row)))
            places.append(place)
        except BadRow as bad:
            faults.append(table.fault(place, bad))
    return _Read(
        Examples.of(prompts, table, places), places, list(map(len, prompts)), table.in_order(faults), 0, form
    )


def decisive(table: Table, settings: RowSettings) -> dict[str, Any]:
    """Return all of a table and of its settings that its tokens depend on, beside the tokenizer, which has the chat template."""
    own = dataclasses.asdict(settings)
    for name in ("train", "validation", "bad_rows", "seed", "template", "leaks"):
        own.pop(name, None)
    renamed = {"renamed": dict(table.renamed)} if table.renamed else {}
    return {"table": [table.sha256, Path(table.source).suffix, len(table.rows)], "settings": own, **renamed}


def faults_of(table: Table, entry: TokenEntry) -> list[Fault]:
    """Return the faults of a table in the order of its lines: of rows that could not be read, and of those that have no tokens."""
    bad_rows = [
        Fault(*table.place(number), reason, detail, table.rows[number])
        for number, reason, detail in entry.facts["bad_rows"]
    ]
    return table.in_order([*table.faults, *bad_rows])


def _cut_ends(lengths: Sequence[int], settings: InstructSettings) -> Iterator[str]:
    """Yield what it means that ends of answers are cut."""
    cut = [length for length in lengths if length > settings.max_length]
    if cut and settings.too_long == "cut_end":
        yield (
            f"{len(cut):,} of {len(lengths):,} conversations are cut at their end, of which the model does not learn where to stop: the longest has "
            f"{max(cut):,} tokens. Raise data.max_length, or give data.too_long: cut_prompt."
        )


def warnings_of(sequences: Iterable[Sequence[int]], coder: Coder) -> tuple[str, ...]:
    """Return what looks wrong in the tokens of conversations, and what a reader should know of their template."""
    warnings, template = [], coder.template
    ends_itself = template is not None and template.turn_end is not None
    if not coder.end and not ends_itself:
        warnings.append(
            "the tokenizer has no end-of-sequence token, so the model will not learn where to stop."
        )
    elif template is not None and not ends_itself:
        warnings.append(
            f"the chat template ends an answer by no token of its own: {coder.tokenizer.eos_token} is scored as the end. Check that "
            "generation stops at it."
        )
    if template is not None and template.prints_date:
        warnings.append(
            f"the chat template writes today's date: it is {DATE:%d %B %Y} here, so that a run that goes on reads the same."
        )
    if template is not None and template.marks_in_text:
        listed = ", ".join(f'"{mark}"' for mark in TURN_MARKS)
        warnings.append(
            f"the chat template writes {' and '.join(template.marks_in_text)}, which this tokenizer does not know as a token and reads as text. "
            f"data.add_tokens: [{listed}] makes tokens of its marks, with new rows of the model's embeddings."
        )
    first = coder.tokenizer.bos_token_id
    twice = sum(ids[0] == ids[1] == first for ids in sequences if first is not None and len(ids) > 1)
    if twice:
        warnings.append(
            f"{twice:,} prompts begin with the token {coder.tokenizer.bos_token} twice: the chat template and the text both "
            "bring it. Remove it from the data."
        )
    return tuple(warnings)
