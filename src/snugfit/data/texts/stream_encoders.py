"""The making of examples of rows that are read as a stream: blocks, texts in a frame, conversations and pairs of answers, with rows treated that cannot be used."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from snugfit.data.bad_rows import BadRow, Fault, settle, text_of
from snugfit.data.files.file_formats import TEXT_COLUMN, is_plain_text
from snugfit.data.files.row_stream import StreamedRow
from snugfit.data.row_settings import RowSettings
from snugfit.data.texts.causal import (
    UNFRAMED,
    CausalSettings,
    Piece,
    blocks_of,
    ended_frame,
    tokenized_pieces,
)
from snugfit.data.texts.conversation_tokens import Coded, Coder
from snugfit.data.texts.conversations import (
    Conversation,
)
from snugfit.data.texts.instruct import (
    LONGER,
    InstructSettings,
)
from snugfit.data.texts.preferences import (
    AnswerWriter,
    PreferenceSettings,
    coded_pair,
    pair_example,
)
from snugfit.data.texts.token_rows import ArrayExamples, FramedBlocks, TokenBlocks, TokenRows
from snugfit.data.texts.tokens import encode, special_frame
from snugfit.errors import SnugfitWarning

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_CUT = {
    "drop": "is left out",
    "cut_prompt": "loses the beginning of its prompt",
    "cut_end": "is cut at its end, of which the model does not learn where to stop",
}
"""What becomes of a row that is too long, by the policy."""


def text_columns(settings: RowSettings) -> Sequence[str]:
    """Return the columns of text: of a plain text its one."""
    return (TEXT_COLUMN,) if is_plain_text(settings.train) else settings.text


class RowEncoder(ABC):
    """The making of examples of rows, with those treated that cannot be used."""

    def __init__(self, settings: RowSettings) -> None:
        self._settings = settings
        self._reasons: set[str] = set()

    def __call__(self, rows: Sequence[StreamedRow]) -> ArrayExamples:
        """Return the examples of rows.

        Raises:
            DataError: some cannot be used, and the policy is 'fail'.
        """
        faults: list[Fault] = []
        read: list[Any] = []
        for row in rows:
            try:
                if row.columns is None:
                    raise BadRow(row.reason, row.detail)
                read.append(self._read(row, row.columns))
            except BadRow as bad:
                faults.append(bad.at(row.source, row.line, row.columns))
        settle(faults, self._settings.bad_rows)
        for fault in faults:
            self._tell_once(
                fault.reason,
                f"{fault.place} is left out: {fault.detail}. Others of this kind are left out too (data.bad_rows: skip).",
            )
        return self._examples(read)

    def _tell_once(self, reason: str, message: str) -> None:
        """Warn of what becomes of a row, and of others for the same reason."""
        if reason not in self._reasons:
            self._reasons.add(reason)
            warnings.warn(message, SnugfitWarning, stacklevel=3)

    @abstractmethod
    def _read(self, row: StreamedRow, columns: Mapping[str, Any]) -> Any:
        """Return what `_examples` takes of a row.

        Raises:
            BadRow: the row cannot be used.
        """

    @abstractmethod
    def _examples(self, read: Sequence[Any]) -> ArrayExamples:
        """Return the examples of rows that were read."""


class TextEncoder(RowEncoder):
    """Texts, of which a plain one is in pieces."""

    def __init__(self, settings: RowSettings, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__(settings)
        self._tokenizer, self._columns = tokenizer, text_columns(settings)

    def _read(self, row: StreamedRow, columns: Mapping[str, Any]) -> Piece:
        part = not (row.begins and row.ends)
        text = columns[TEXT_COLUMN] if part else text_of(columns, self._columns)
        return Piece(text, row.begins, row.ends)


class BlockEncoder(TextEncoder):
    """Texts in blocks."""

    def __init__(self, settings: CausalSettings, tokenizer: PreTrainedTokenizerBase) -> None:
        super().__init__(settings, tokenizer)
        self._documents = settings.documents

    def _examples(self, read: Sequence[Piece]) -> ArrayExamples:
        texts = tokenized_pieces(read, self._tokenizer, ended_frame(self._tokenizer))
        return blocks_of(texts, self._settings.max_length, self._documents)[0]


class FramedEncoder(TextEncoder):
    """Each text, or each block of a plain one, between the special tokens of its own."""

    def _examples(self, read: Sequence[Piece]) -> ArrayExamples:
        size = self._settings.max_length
        if not is_plain_text(self._settings.train):
            return encode([piece.text for piece in read], self._tokenizer, size).examples
        frame = special_frame(self._tokenizer)
        texts = tokenized_pieces(read, self._tokenizer, UNFRAMED)
        return FramedBlocks(TokenBlocks(texts, size - len(frame)), frame.prefix, frame.suffix)


class ConversationEncoder(RowEncoder):
    """Conversations, without those that `too_long` drops."""

    def __init__(
        self,
        settings: InstructSettings,
        coder: Coder,
        conversation: Callable[[Mapping[str, Any]], Conversation],
    ) -> None:
        super().__init__(settings)
        self._coder, self._conversation, self._too_long = coder, conversation, settings.too_long

    def _read(self, row: StreamedRow, columns: Mapping[str, Any]) -> list[Coded]:
        coded = self._coder.examples(self._conversation(columns))
        if any(each.length > self._settings.max_length for each in coded):
            self._tell_once(LONGER, _longer(row, self._too_long))
        return coded

    def _examples(self, read: Sequence[Sequence[Coded]]) -> ArrayExamples:
        # what is longer is to be dropped by `too_long`
        fitting = (each for own in read for each in own if len(each.ids) <= self._settings.max_length)
        return TokenRows.of(each.as_example() for each in fitting)


class PairEncoder(RowEncoder):
    """Pairs of answers, without those that `too_long` drops."""

    def __init__(self, settings: PreferenceSettings, columns: Sequence[str], writer: AnswerWriter) -> None:
        super().__init__(settings)
        self._pairs, self._columns, self._writer = settings, columns, writer

    def _read(self, row: StreamedRow, columns: Mapping[str, Any]) -> Sequence[Coded] | None:
        coded = coded_pair(columns, self._columns, self._pairs, self._writer)
        if coded is None or any(each.length > self._pairs.max_length for each in coded):
            self._tell_once(LONGER, _longer(row, self._pairs.too_long))
        return coded

    def _examples(self, read: Sequence[Sequence[Coded] | None]) -> ArrayExamples:
        return TokenRows.of((pair_example(each) for each in read if each is not None), sequences=2)


def _longer(row: StreamedRow, policy: str) -> str:
    """Return what becomes of a row that is longer than `data.max_length`."""
    place = f"{row.source}:{row.line}" if row.line else row.source
    return f"{place} is longer than data.max_length and {_CUT[policy]}, as all that are (data.too_long: {policy})."
