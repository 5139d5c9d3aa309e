"""Rows of preferences: a prompt with a better and a worse answer, or with one answer that is called good or bad."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from snugfit.data.bad_rows import BadRow, Fault, kind_of, settle, shorten, text_of
from snugfit.data.examples import Examples
from snugfit.data.files.file_rows import FileRows
from snugfit.data.named_sources import Sources
from snugfit.data.report import DataReport
from snugfit.data.sources import Table, check_columns, fingerprints_of, read_table
from snugfit.data.texts.chat_template import set_template
from snugfit.data.texts.conversation_tokens import Coded, Coder, first_fitting, without_oldest_turns
from snugfit.data.texts.conversations import Conversation, Message, messages_in, prompt_columns, tools_of
from snugfit.data.texts.instruct import (
    LONGER,
    InstructSettings,
    decisive,
    faults_of,
    question_in,
    sides_of,
    warnings_of,
)
from snugfit.data.texts.token_cache import TokenEntry, cached
from snugfit.data.texts.token_rows import TokenRows
from snugfit.data.texts.tokens import (
    IGNORED_LABEL,
    check_max_length,
    longest_lists,
    mask_of_lists,
    padded_lists,
    padding_for,
    special_frame,
)
from snugfit.errors import DataError
from snugfit.kit.losses.preference_losses import DESIRABLE, LENGTHS, REFERENCE

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from snugfit.data.stream import Streamed

_UNCUT = 2**62
"""More tokens than any text has: what is too long is cut in both answers alike, and so after both are written."""


@dataclass(frozen=True)
class PreferenceSettings(InstructSettings):
    """The `data` part of a recipe for preferences; without `pairs` a row has an answer and a label."""

    answers: tuple[str, str] = ("chosen", "rejected")
    label: str = "label"
    pairs: bool = True


@dataclass(frozen=True)
class PreferenceData:
    """Examples of two sequences of at most `max_length` tokens each: `labels` are the tokens of the answers, -100 elsewhere.

    Of single answers the second sequence is their prompt with the answer to another one. `stops` are the tokens by which a generation ends.
    """

    train: Examples | Streamed
    validation: Examples
    collate: PadPairs
    report: DataReport
    fingerprints: Mapping[str, str]
    stops: tuple[int, ...] = ()
    example_rows: Sequence[dict[str, Any]] = ()


@dataclass(frozen=True)
class PadPairs:
    """Collate examples into tensors (rows, 2, tokens), padded on the right to the longest sequence.

    >>> batch = PadPairs(0)([{"input_ids": [[5, 6], [5]], "labels": [[-100, 6], [-100]]}])
    >>> batch["input_ids"].tolist(), batch["attention_mask"].tolist(), batch["lengths"]
    ([[[5, 6], [5, 0]]], [[[1, 1], [1, 0]]], (2,))
    """

    padding: int

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        sequences, labels = ([example[name] for example in examples] for name in ("input_ids", "labels"))
        lengths = longest_lists(sequences)
        batch: dict[str, Any] = {
            "input_ids": padded_lists(sequences, max(lengths), self.padding),
            "attention_mask": mask_of_lists(sequences, max(lengths)),
            "labels": padded_lists(labels, max(lengths), IGNORED_LABEL),
            LENGTHS: lengths,
        }
        for name, dtype in ((DESIRABLE, torch.bool), (REFERENCE, torch.float32)):
            if name in examples[0]:
                values: Tensor = torch.tensor([example[name] for example in examples], dtype=dtype)
                batch[name] = values
        return batch


class Answered(NamedTuple):
    """A prompt, the messages of an answer to it, and the functions that these may call."""

    prompt: tuple[Message, ...]
    answer: tuple[Message, ...]
    tools: list[Any] | None = None

    @property
    def conversation(self) -> Conversation:
        """Prompt and answer, of which the assistant's messages of the answer are scored."""
        messages = (*self.prompt, *self.answer)
        scored = [
            place
            for place in range(len(self.prompt), len(messages))
            if messages[place]["role"] == "assistant"
        ]
        return Conversation(messages, tuple(scored), self.tools)


def load_preferences(
    settings: PreferenceSettings, tokenizer: PreTrainedTokenizerBase, *, folder: Path | None = None
) -> PreferenceData:
    """Read, validate, split and tokenise.

    Texts are written as instruction tuning writes them. Both sequences of a row are treated alike where one of them is longer than
    `max_length`, so that they go on having one prompt.

    Raises:
        DataError: a source cannot be used, rows are faulty and the policy is 'fail', or too little is left.
        SettingError: the chat template cannot be used.
    """
    template_file = set_template(tokenizer, settings.template, folder)
    check_max_length(settings.max_length, tokenizer, len(special_frame(tokenizer)))
    tables = [read_table(source, setting=setting, folder=folder) for setting, source in settings.sources]
    writer = AnswerWriter.of(settings, tokenizer)
    of_tables = [[_read(part, settings, writer) for part in table.each] for table in tables]
    read = [part for own in of_tables for part in own]
    skipped = settle([fault for part in read for fault in part.faults], settings.bad_rows)
    if dropped := sum(part.dropped for part in read):
        skipped[LONGER] = dropped
    sides = sides_of(
        [
            Examples.joined(table, [part.examples for part in own])
            for table, own in zip(tables, of_tables, strict=True)
        ],
        tables,
        settings,
        skipped,
        [partial(_questions, table, own, settings) for table, own in zip(tables, of_tables, strict=True)],
    )
    train, held_out = sides.train, sides.validation
    lengths = [length for part in read for length in part.lengths]
    return PreferenceData(
        train=train,
        validation=held_out,
        collate=PadPairs(padding_for(tokenizer).fill["input_ids"]),
        report=DataReport(
            train=len(train),
            validation=len(held_out),
            skipped=skipped,
            labels={} if settings.pairs else _labels(train),
            warnings=(
                *warnings_of((each["input_ids"][0] for part in read for each in part.examples), writer.coder),
                *_cut_ends(lengths, settings),
                *sides.warnings,
            ),
            form="pairs of answers" if settings.pairs else "answers with a label",
        ).with_tokens(lengths, settings.max_length),
        fingerprints=fingerprints_of(tables) | template_file,
        stops=writer.coder.stops,
        example_rows=rows_with_prompt(tables[-1].rows, settings.text),
    )


def read_pairs(
    source: str | Sources, settings: PreferenceSettings, writer: AnswerWriter, *, folder: Path | None = None
) -> FileRows:
    """Read a file of preferences to validate on, beside rows that are read as a stream.

    Raises:
        DataError: it cannot be read, rows are faulty and the policy is 'fail', or none is left.
    """
    table = read_table(source, setting="data.validation", folder=folder)
    read = [_read(part, settings, writer) for part in table.each]
    skipped = settle([fault for part in read for fault in part.faults], settings.bad_rows)
    if dropped := sum(part.dropped for part in read):
        skipped[LONGER] = dropped
    examples = Examples.joined(table, [part.examples for part in read])
    if not len(examples):
        raise DataError(str(source), "no row is left to validate on", "Give others, or write null.")
    return FileRows(
        examples,
        [dict(table.rows[row]) for row in examples.table_rows],
        [table.lines[row] for row in examples.table_rows],
        tuple(table.columns),
        PadPairs(padding_for(writer.coder.tokenizer).fill["input_ids"]),
        DataReport(train=0, validation=len(examples), skipped=skipped),
        fingerprints_of([table]),
    )


def coded_pair(
    row: Mapping[str, Any], columns: Sequence[str], settings: PreferenceSettings, writer: AnswerWriter
) -> Sequence[Coded] | None:
    """Return the tokens of a row with two answers; None where one is too long and such rows are left out.

    Args:
        columns: of the first rows, which say with the row's own where the prompt is.
    Raises:
        BadRow: the row cannot be used.
    """
    pair = pair_of(row, prompt_columns([*columns, *row], settings.text), settings.answers)
    return _different(writer.written(*pair))


def pair_example(coded: Sequence[Coded]) -> dict[str, Any]:
    """Return what a model is given of both sequences of a row."""
    return {"input_ids": [each.ids for each in coded], "labels": [each.labels for each in coded]}


def rows_with_prompt(rows: Sequence[Mapping[str, Any]], text: Sequence[str]) -> list[dict[str, Any]]:
    """Return the prompts of the first rows that have one of plain text, as rows to be answered."""
    asked = []
    for row in rows[:_EXAMPLE_ROWS]:
        columns = prompt_columns(list(row), text)
        if all(isinstance(row.get(column), str) for column in columns):
            asked.append({column: row[column] for column in columns})
    return asked


def prompt_of(row: Mapping[str, Any], columns: Sequence[str]) -> tuple[Message, ...] | None:
    """Return the messages of a row's prompt: a list of them, or what the user says; None where the row has none.

    Raises:
        BadRow: it is empty, or no text.
    """
    values = [row.get(column) for column in columns]
    if all(value is None for value in values):
        return None
    if len(columns) == 1 and not isinstance(values[0], str):
        return tuple(messages_in(values[0], columns[0]))
    return ({"role": "user", "content": text_of(row, columns)},)


def pair_of(
    row: Mapping[str, Any], columns: Sequence[str], answers: tuple[str, str]
) -> tuple[Answered, Answered]:
    """Return the better and the worse answer of a row, which go on from one prompt.

    They are texts that answer the prompt, or lists of messages: whole conversations that begin with it, or what follows it. Without a
    prompt it is what both conversations begin with.

    Raises:
        BadRow: a column is missing or empty, the answers are equal, or do not go on from the prompt.
    """
    prompt = prompt_of(row, columns)
    names, texts = " and ".join(answers), [isinstance(row.get(column), str) for column in answers]
    messages = [_answer_of(row, column) for column in answers]
    if messages[0] == messages[1]:
        raise BadRow("equal answers", f"{names} are equal, so that there is nothing to prefer")
    if texts[0] != texts[1]:
        kinds = " and ".join(f"{column} is {kind_of(row[column])}" for column in answers)
        raise BadRow("answers of two kinds", kinds)
    if prompt is None and texts[0]:
        raise BadRow("missing column", f"the row has no prompt ({' and '.join(columns)})")
    shared = _common_beginning(*messages)
    if prompt is None and not shared:
        raise BadRow("no common beginning", f"{names} begin with different messages")
    starts = [each[0]["role"] == "assistant" for each in messages]
    if prompt is None or (not any(starts) and shared[-1:] == prompt[-1:]):
        prompt = shared  # as text it may lack the system's message
    both = []
    for column, whole in zip(answers, messages, strict=True):
        answer = whole[len(prompt) :] if whole[: len(prompt)] == prompt else whole
        if answer is whole and whole[0]["role"] != "assistant":
            raise BadRow(
                "prompt is no beginning", f"{column} is a conversation that does not begin with the prompt"
            )
        if not any(message["role"] == "assistant" for message in answer):
            raise BadRow("no answer", f"{column} has no message of the assistant behind the prompt")
        both.append(Answered(prompt, answer, tools_of(row)))
    return both[0], both[1]


def labelled_of(
    row: Mapping[str, Any], columns: Sequence[str], completion: str, label: str
) -> tuple[Answered, bool]:
    """Return the answer of a row, and whether it is a good one.

    Raises:
        BadRow: a column is missing or empty, or the label is neither true nor false.
    """
    prompt = prompt_of(row, columns)
    if prompt is None:
        raise BadRow("missing column", f"the row has no prompt ({' and '.join(columns)})")
    answer = _answer_of(row, completion)
    if answer[: len(prompt)] == prompt:
        answer = answer[len(prompt) :]
    if not answer or answer[0]["role"] != "assistant":
        raise BadRow("prompt is no beginning", f"{completion} does not answer the prompt")
    value = row.get(label)
    good = _TRUTHS.get(value.strip().casefold()) if isinstance(value, str) else value
    if not isinstance(good, bool) and type(good).__name__ != "bool_":
        raise BadRow(
            "label is not boolean", f"{label} is {kind_of(value)} ({shorten(value)}), not true or false"
        )
    return Answered(prompt, answer, tools_of(row)), bool(good)


_EXAMPLE_ROWS = 8

_TRUTHS = {"true": True, "false": False}
"""Labels as files of text alone, such as CSV, have them."""


def conversation_with(row: Mapping[str, Any], text: Sequence[str], answer: str | None) -> Conversation:
    """Return the conversation of a row's prompt, with the answer of a column or to be answered.

    Raises:
        BadRow: it has none.
    """
    columns = prompt_columns(list(row), text)
    prompt = prompt_of(row, columns)
    if prompt is None:
        raise BadRow("missing column", f"the row has no prompt ({' and '.join(columns)})")
    if answer is None:
        return Conversation(prompt, (), tools_of(row))
    messages = _answer_of(row, answer)
    if messages[: len(prompt)] == prompt:
        messages = messages[len(prompt) :]
    return Answered(prompt, messages, tools_of(row)).conversation


def _answer_of(row: Mapping[str, Any], column: str) -> tuple[Message, ...]:
    value = row.get(column)
    if value is None or isinstance(value, str):
        return ({"role": "assistant", "content": text_of(row, [column])},)
    return tuple(messages_in(value, column))


def _common_beginning(first: Sequence[Message], second: Sequence[Message]) -> tuple[Message, ...]:
    same = itertools.takewhile(lambda both: both[0] == both[1], zip(first, second, strict=False))
    return tuple(message for message, _ in same)


class AnswerWriter:
    """The way of a row's two sequences into tokens of at most `max_length`."""

    def __init__(self, coder: Coder, settings: PreferenceSettings) -> None:
        self.coder, self._settings = coder, settings

    @classmethod
    def of(cls, settings: PreferenceSettings, tokenizer: PreTrainedTokenizerBase) -> Self:
        """Return that of a tokenizer with its chat template."""
        return cls(Coder(tokenizer, replace(settings, max_length=_UNCUT)), settings)

    def written(self, *answers: Answered) -> list[Coded] | None:
        """Return the tokens of each; None where one of them is too long and such rows are left out.

        Raises:
            BadRow: one cannot be written, or there is no room for it.
        """
        most, policy = self._settings.max_length, self._settings.too_long
        conversations = [each.conversation for each in answers]
        coded = self._both(conversations)
        lengths = [len(each.ids) for each in coded]
        if max(lengths) <= most:
            return coded
        if policy == "drop":
            return None
        if policy == "cut_prompt":
            # both lose the same turns
            shorter = list(zip(*map(without_oldest_turns, conversations), strict=False))
            if shorter:
                coded = self._both(first_fitting(shorter, lambda each: _longest(self._both(each)) <= most))
            beyond = _longest(coded) - most
            coded = [self.coder.without_beginning(each, max(0, beyond)) for each in coded]
        return [each.cut(most)._replace(length=length) for each, length in zip(coded, lengths, strict=True)]

    def _both(self, conversations: Sequence[Conversation]) -> list[Coded]:
        return [self._alone(each) for each in conversations]

    def _alone(self, conversation: Conversation) -> Coded:
        coded = self.coder.examples(conversation)
        if len(coded) > 1:
            raise BadRow(
                "turns that cannot be joined",
                "the chat template writes earlier answers otherwise than the last one, so that several cannot be compared at once",
            )
        return coded[0]


def _longest(coded: Sequence[Coded]) -> int:
    return max(len(each.ids) for each in coded)


class _Read(NamedTuple):
    """The examples of a table, the tokens of each sequence before it is cut, the faults, and how many were left out for their length."""

    examples: Examples
    lengths: list[int]
    faults: list[Fault]
    dropped: int


def _read(table: Table, settings: PreferenceSettings, writer: AnswerWriter) -> _Read:
    columns = prompt_columns(table.columns, settings.text)
    _check_columns(table, settings, columns)
    entry = cached(
        "preferences",
        {**decisive(table, settings), "columns": columns},
        writer.coder.tokenizer,
        lambda: _written(table, settings, writer, columns),
    )
    # dicts that stay: a training writes the scores of the model as it begins into them
    return _Read(
        Examples.of(list(entry.rows), table, entry.numbers["rows"].tolist()),
        entry.numbers["lengths"].tolist(),
        faults_of(table, entry),
        int(entry.facts["dropped"]),
    )


def _questions(table: Table, read: Sequence[_Read], settings: PreferenceSettings) -> list[str]:
    """Return the prompt of the row of each example."""

    def prompt(row: Mapping[str, Any], columns: Sequence[str]) -> tuple[Message, ...]:
        if settings.pairs:
            return pair_of(row, columns, settings.answers)[0].prompt
        return labelled_of(row, columns, settings.completion, settings.label)[0].prompt

    texts = []
    for own, part in zip(table.each, read, strict=True):
        columns = prompt_columns(own.columns, settings.text)
        texts += [question_in(prompt(own.rows[row], columns)) for row in part.examples.table_rows]
    return texts


def _written(
    table: Table, settings: PreferenceSettings, writer: AnswerWriter, columns: Sequence[str]
) -> TokenEntry:
    bad_rows: list[tuple[int, str, str]] = []

    def good(numbers: Sequence[int], made: Callable[[int], Any]) -> dict[int, Any]:
        usable = {}
        for number in numbers:
            try:
                usable[number] = made(number)
            except BadRow as bad:
                bad_rows.append((number, bad.reason, bad.detail))
        return usable

    everything = range(len(table.rows))
    if settings.pairs:
        pairs = good(everything, lambda at: pair_of(table.rows[at], columns, settings.answers))
        written = good(list(pairs), lambda at: _different(writer.written(*pairs[at])))
        more: dict[int, dict[str, Any]] = {at: {} for at in written}
    else:
        single = good(
            everything, lambda at: labelled_of(table.rows[at], columns, settings.completion, settings.label)
        )
        other = _mismatched(table.source, {at: answered for at, (answered, _) in single.items()})
        written = good(list(single), lambda at: writer.written(single[at][0], other[at]))
        more = {at: {DESIRABLE: single[at][1]} for at in written}
    whole = {at: coded for at, coded in written.items() if coded is not None}
    rows = TokenRows.of(
        ({**pair_example(coded), **more[at]} for at, coded in whole.items()),
        sequences=2,
    )
    counted = 2 if settings.pairs else 1
    lengths = [each.length for coded in whole.values() for each in coded[:counted]]
    numbers = {"rows": np.array(list(whole), dtype=np.int64), "lengths": np.array(lengths, dtype=np.int64)}
    return TokenEntry(rows, numbers, {"bad_rows": bad_rows, "dropped": len(written) - len(whole)})


def _check_columns(table: Table, settings: PreferenceSettings, columns: Sequence[str]) -> None:
    if not table.rows:
        return
    if not settings.pairs:
        check_columns(
            table,
            {"data.text": columns, "data.completion": [settings.completion], "data.label": [settings.label]},
        )
        return
    check_pair_columns(table, settings)


def check_pair_columns(table: Table, settings: PreferenceSettings) -> None:
    """Check that a table has the columns of pairs.

    Raises:
        DataError: one is missing.
    """
    if not table.rows:
        return
    named: dict[str, Sequence[str]] = {"data.answers": settings.answers}
    if isinstance(table.rows[0].get(settings.answers[0]), str):  # conversations may do without
        named = {"data.text": prompt_columns(table.columns, settings.text), **named}
    check_columns(table, named)


def _different(coded: list[Coded] | None) -> list[Coded] | None:
    """Return a pair whose answers are not equal once they are written and cut.

    Raises:
        BadRow: they are.
    """
    if coded is not None and coded[0].ids == coded[1].ids:
        raise BadRow(
            "equal answers",
            "both answers have the same tokens as far as they are read, so that there is nothing to prefer",
        )
    return coded


def _mismatched(source: str, answers: Mapping[int, Answered]) -> dict[int, Answered]:
    """Return each row's prompt with the answer of the row before it that has another prompt; before the first row comes the last.

    Raises:
        DataError: all prompts are equal.
    """
    if not answers:
        return {}
    first = next(iter(answers.values())).prompt
    before = next((each for each in reversed(list(answers.values())) if each.prompt != first), None)
    if before is None:
        raise DataError(
            "data",
            f"all rows of {source} have the same prompt, and kto compares each prompt's answer with that to another one",
            "Give rows with different prompts, or another loss.",
        )
    others: dict[int, Answered] = {}
    last = before
    for at, own in answers.items():
        if last.prompt != own.prompt:
            before = last
        others[at], last = Answered(own.prompt, before.answer, own.tools), own
    return others


def _labels(examples: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    good = sum(example[DESIRABLE] for example in examples)
    return {"desirable": good, "undesirable": len(examples) - good}


def _cut_ends(lengths: Sequence[int], settings: PreferenceSettings) -> Iterator[str]:
    """Yield what it means that ends of answers are cut."""
    cut = [length for length in lengths if length > settings.max_length]
    if cut and settings.too_long == "cut_end":
        yield (
            f"{len(cut):,} of {len(lengths):,} answers are cut at their end, of which the model does not learn where to stop: the longest has "
            f"{max(cut):,} tokens with its prompt. Raise data.max_length, or give data.too_long: cut_prompt."
        )
