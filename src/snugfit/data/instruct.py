"""Instruction tuning: prompts and completions to tokens, of which the completion's alone are scored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from snugfit.data.bad_rows import BadRow, Fault, settle, text_of
from snugfit.data.columns import check_columns
from snugfit.data.examples import Examples
from snugfit.data.report import DataReport, median
from snugfit.data.row_settings import RowSettings
from snugfit.data.sources import Table, read_table
from snugfit.data.split import split_rows
from snugfit.data.text import Collate
from snugfit.data.tokens import IGNORED_LABEL, Example, check_max_length, padding_for, special_frame
from snugfit.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


_ANSWER = "An answer of which nothing else is written."
"""Text by which an answer is found in what a template writes."""


@dataclass(frozen=True)
class InstructSettings(RowSettings):
    """The `data` part of a recipe for instruction tuning: `text` are the columns of the prompt."""

    completion: str = "completion"


@dataclass(frozen=True)
class InstructData:
    """Examples of at most `max_length` tokens; `labels` are the completion's tokens and the end of the turn, -100 elsewhere."""

    train: Examples
    validation: Examples
    collate: Collate
    report: DataReport
    fingerprints: Mapping[str, str]


def load_instruct(
    settings: InstructSettings, tokenizer: PreTrainedTokenizerBase, *, folder: Path | None = None
) -> InstructData:
    """Read, validate, split and tokenise.

    A tokenizer with a chat template gets the prompt as the user's message and the completion as the assistant's; what the
    template writes beyond the prompt is scored, up to the token by which it ends a turn. Without a template the completion
    follows the prompt after a line break and ends with the end-of-sequence token, and so it does where the template ends no
    turn. What is longer than `max_length` is cut at the end; a prompt that leaves no room for a token of its completion is a
    faulty row.

    Raises:
        DataError: a source cannot be used, rows are faulty and the policy is 'fail', or too little is left.
    """
    check_max_length(settings.max_length, tokenizer, special_frame(tokenizer))
    tables = [read_table(source, setting=setting, folder=folder) for setting, source in settings.sources]
    frame = _Frame(tokenizer)
    faults: list[Fault] = []
    parts: list[Examples] = []
    lengths: list[int] = []
    for table in tables:
        examples, whole, bad = _examples(table, settings, frame)
        parts.append(examples)
        lengths += whole
        faults += bad
    skipped = settle(faults, settings.bad_rows)
    train, held_out = parts[0], parts[1] if len(parts) > 1 else parts[0].at(())
    if settings.fraction is not None and len(train) > 1:
        rows, drawn = split_rows([0] * len(train), settings.fraction, settings.seed)
        train, held_out = train.at(rows), train.at(drawn)
    if not train or (settings.validation is not None and not held_out):
        names = " and ".join(table.source for table in tables)
        left_out = ", ".join(f"{reason} ({count})" for reason, count in skipped.items())
        raise DataError(
            "data",
            f"{names} {('has' if len(tables) == 1 else 'have')} {len(train)} usable rows to train on and "
            f"{len(held_out)} to validate on{(f'; left out: {left_out}' if left_out else '')}",
            f"Give more rows{(', or correct these' if left_out else '')}.",
        )
    return InstructData(
        train=train,
        validation=held_out,
        collate=padding_for(tokenizer),
        report=DataReport(
            train=len(train),
            validation=len(held_out),
            skipped=skipped,
            truncated=sum(length > settings.max_length for length in lengths),
            max_length=settings.max_length,
            tokens_total=sum(lengths),
            tokens_max=max(lengths, default=0),
            tokens_median=median(lengths),
            warnings=_warnings(parts, frame),
        ),
        fingerprints={table.source: table.sha256 for table in tables},
    )


class _Frame:
    """The way that a tokenizer puts a prompt and a completion together."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self.special = special_frame(tokenizer)
        end = tokenizer.eos_token_id
        self.end = self.special.suffix or (() if end is None else (int(end),))
        self._tail, self.turn_end = self._find_end_of_turn() if self.chats else ("", None)

    @property
    def chats(self) -> bool:
        return bool(self.tokenizer.chat_template)

    def tokens(self, prompt: str, completion: str) -> tuple[list[int], list[int]]:
        """Return what is read and what is scored."""
        if self.chats:
            return self._turn(prompt, completion)
        return [*self.special.prefix, *self._plain(f"{prompt}\n")], [*self._plain(completion), *self.end]

    def _turn(self, prompt: str, completion: str) -> tuple[list[int], list[int]]:
        """Return the prompt as the template asks for an answer, and what it writes beyond that up to the end of the turn."""
        asked, whole = self._rendered(prompt), self._rendered(prompt, completion)
        read = self._plain(asked)
        answer = completion
        # a template may open an answer otherwise than it writes one down, with a <think>, or change it by what it holds
        if (
            whole.startswith(asked)
            and whole.endswith(self._tail)
            and len(whole) > len(asked) + len(self._tail)
        ):
            answer = whole[len(asked) : len(whole) - len(self._tail)]
        if self.turn_end is None:
            return read, [*self._plain(answer), *self.end]
        answer += self.turn_end
        # together, as some tokenizers put a space before every text that they are given
        together = self._plain(asked + answer)
        return read, together[len(read) :] if together[: len(read)] == read else self._plain(answer)

    def _find_end_of_turn(self) -> tuple[str, str | None]:
        """Return what the template writes after an answer, and the part of that up to its first token that is no text; None without one."""
        _, separator, tail = self._rendered("a", _ANSWER).rpartition(_ANSWER)
        if not separator:
            return "", None
        added = {str(token) for token in self.tokenizer.added_tokens_decoder.values()}
        marks = added | set(self.tokenizer.all_special_tokens)
        places = [(tail.index(mark), -len(mark), mark) for mark in marks if mark in tail]
        if not places:
            return tail, None
        at, _, mark = min(places)
        return tail, tail[:at] + mark

    def _rendered(self, prompt: str, completion: str | None = None) -> str:
        """Return a prompt as the template asks for its answer, or with the answer."""
        messages = [{"role": "user", "content": prompt}]
        if completion is not None:
            messages.append({"role": "assistant", "content": completion})
        asks = completion is None
        return str(self.tokenizer.apply_chat_template(messages, add_generation_prompt=asks, tokenize=False))

    def _plain(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


def _examples(
    table: Table, settings: InstructSettings, frame: _Frame
) -> tuple[Examples, list[int], list[Fault]]:
    """Return the examples, how many tokens each has before it is cut, and the faults."""
    faults = list(table.faults)
    if table.rows:
        check_columns(table, {"data.text": settings.text, "data.completion": [settings.completion]})
    examples: list[Example] = []
    rows: list[int] = []
    lengths: list[int] = []
    for number, (row, line) in enumerate(zip(table.rows, table.lines, strict=True)):
        try:
            read, scored = frame.tokens(text_of(row, settings.text), text_of(row, [settings.completion]))
            if len(read) >= settings.max_length:
                raise BadRow(
                    "prompt too long",
                    f"the prompt has {len(read)} tokens, which leaves no room for a completion in {settings.max_length} "
                    "(data.max_length)",
                )
        except BadRow as bad:
            faults.append(bad.at(table.source, line))
            continue
        tokens = [*read, *scored][: settings.max_length]
        labels = [*[IGNORED_LABEL] * len(read), *scored][: settings.max_length]
        examples.append({"input_ids": tokens, "attention_mask": [1] * len(tokens), "labels": labels})
        rows.append(number)
        lengths.append(len(read) + len(scored))
    return Examples.of(examples, table, rows), lengths, sorted(faults, key=lambda fault: fault.line)


def _warnings(parts: Sequence[Sequence[Example]], frame: _Frame) -> tuple[str, ...]:
    warnings = []
    ends_itself = frame.chats and frame.turn_end is not None
    if not frame.end and not ends_itself:
        warnings.append(
            "the tokenizer has no end-of-sequence token, so the model will not learn where to stop."
        )
    elif frame.chats and not ends_itself:
        warnings.append(
            f"the chat template ends an answer by no token of its own: {frame.tokenizer.eos_token} is scored as the end. Check that "
            "generation stops at it."
        )
    twice: Counter[bool] = Counter(
        example["input_ids"][0] == example["input_ids"][1] == frame.tokenizer.bos_token_id
        for part in parts
        for example in part
        if frame.tokenizer.bos_token_id is not None and len(example["input_ids"]) > 1
    )
    if twice[True]:
        warnings.append(
            f"{twice[True]:,} prompts begin with the token {frame.tokenizer.bos_token} twice: the chat template and the text both "
            "bring it. Remove it from the data."
        )
    return tuple(warnings)
