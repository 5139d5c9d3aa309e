"""The tokens of a text and of its words, and the overlapping windows in which a model reads a long one."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from snugfit.data.texts.token_cache import TokenEntry
from snugfit.data.texts.token_rows import Example, TokenWriter
from snugfit.data.texts.tokens import IGNORED_LABEL, Frame
from snugfit.errors import ModelError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

OVERLAP = 4
"""One of so many parts of a window is shared with the next one."""

_BATCH = 1000
_WORD = ("start", "end", "first", "last")
_NUMBERS = attrgetter(*_WORD)
_ENDS = "ends"


@dataclass(frozen=True)
class Word:
    """A word of a text: its characters, and its first and its last token; both are -1 where the tokenizer leaves nothing of it."""

    start: int
    end: int
    first: int = -1
    last: int = -1


@dataclass(frozen=True)
class TokenizedText:
    """The tokens of a whole text without special ones, and its words in order."""

    ids: list[int]
    words: list[Word]


@dataclass(frozen=True)
class Window:
    """A part of a text as a model reads it.

    `example` has its tokens between the special ones; `places` says by its number in the text where the first token of a word stands
    in it, of words that have more tokens around them here than in any other window.
    """

    example: Example
    places: dict[int, int]


def tokenize(
    texts: Sequence[str],
    words: Sequence[Sequence[tuple[int, int]] | None],
    tokenizer: PreTrainedTokenizerBase,
) -> list[TokenizedText]:
    """Return the tokens of whole texts, and of their words.

    Args:
        words: the characters of each text's words; None for what the tokenizer takes as words, with signs as words of their own.
    Raises:
        ModelError: the tokenizer does not say which characters a token is made of.
    """
    if not tokenizer.is_fast:
        raise ModelError(
            "model",
            f"{type(tokenizer).__name__} does not say which characters a token is made of",
            "Take a model with a fast tokenizer (a tokenizer.json).",
        )
    results: list[TokenizedText] = []
    for start in range(0, len(texts), _BATCH):
        chunk = list(texts[start : start + _BATCH])
        batch = tokenizer(chunk, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        for place, (text, own) in enumerate(zip(chunk, words[start : start + _BATCH], strict=True)):
            ids = list(batch["input_ids"][place])
            characters = [_stripped(text, *each) for each in batch["offset_mapping"][place]]
            if own is None:
                own_words = _words_of_tokens(text, characters, batch.word_ids(place))
            else:
                own_words = _words_of_characters(own, characters)
            results.append(TokenizedText(ids, own_words))
    return results


def packed(texts: Sequence[TokenizedText]) -> TokenEntry:
    """Return tokenised texts in arrays, as the cache of tokens takes them."""
    ids, words = TokenWriter(), TokenWriter()
    for text in texts:
        ids.add({"input_ids": text.ids})
        columns = zip(*map(_NUMBERS, text.words), strict=True)
        words.add(dict(zip(_WORD, map(list, columns), strict=True)) if text.words else {"start": []})
    of_words = words.rows()
    return TokenEntry(ids.rows(), {**of_words.lists, _ENDS: of_words.ends})


def unpacked(entry: TokenEntry) -> list[TokenizedText]:
    """Return what was `packed`."""
    columns = (entry.numbers[name].tolist() if name in entry.numbers else [] for name in _WORD)
    words = list(map(Word, *columns))
    ends = entry.numbers[_ENDS].tolist()
    return [
        TokenizedText(entry.rows.tokens(place).tolist(), words[start:end])
        for place, (start, end) in enumerate(zip([0, *ends], ends, strict=False))
    ]


def windows_of(text: TokenizedText, max_length: int, frame: Frame, *, token_types: bool) -> list[Window]:
    """Return the windows of a text of at most `max_length` tokens each, special ones counted.

    Each word with a token is in one of them alone: the one in which the nearer end of the window is farthest from it; an end of the
    text is no such end.

    Args:
        token_types: whether the model is told that all tokens are of one text.
    """
    room, count = max_length - len(frame), len(text.ids)
    step = max(1, room - room // OVERLAP)
    starts = [*range(0, max(1, count - room), step), count - room] if count > room else [0]
    places: list[dict[int, int]] = [{} for _ in starts]
    for number, word in enumerate(text.words):
        if word.first < 0:
            continue
        # a word that is longer than a window is in none as a whole
        inside = range(bisect_right(starts, word.first - room), bisect_right(starts, word.first))
        best = max(inside, key=lambda at: _context(word, starts[at], room, count))
        places[best][number] = word.first - starts[best] + len(frame.prefix)
    return [
        Window(_example(text.ids[start : start + room], frame, token_types), own)
        for start, own in zip(starts, places, strict=True)
        if own
    ]


def labelled(window: Window, classes: Sequence[int]) -> Example:
    """Return an example of which the first tokens of the window's own words have their classes, and no other token counts.

    Args:
        classes: of all words of the text.
    """
    labels = [IGNORED_LABEL] * len(window.example["input_ids"])
    for word, place in window.places.items():
        labels[place] = classes[word]
    return {**window.example, "labels": labels}


def _context(word: Word, start: int, room: int, count: int) -> float:
    """Return how many tokens there are around a word in a window, on the side with fewer; all of them at an end of the text."""
    before = math.inf if start == 0 else word.first - start
    after = math.inf if start + room >= count else start + room - 1 - word.last
    return min(before, after)


def _example(ids: Sequence[int], frame: Frame, token_types: bool) -> Example:
    whole = [*frame.prefix, *ids, *frame.suffix]
    example: dict[str, Any] = {"input_ids": whole}
    if token_types:
        example["token_type_ids"] = [0] * len(whole)
    return {**example, "attention_mask": [1] * len(whole)}


def _stripped(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the characters of a token without the spaces that some tokenizers take along."""
    piece = text[start:end]
    return start + len(piece) - len(piece.lstrip()), max(start, end - len(piece) + len(piece.rstrip()))


def _words_of_tokens(
    text: str, characters: Sequence[tuple[int, int]], numbers: Sequence[int | None]
) -> list[Word]:
    """Return words as the tokenizer tells them apart; a token begins one too where letters and signs meet."""
    words: list[Word] = []
    before: int | None = None
    for token, ((start, end), number) in enumerate(zip(characters, numbers, strict=True)):
        if start >= end:
            continue
        goes_on = (
            bool(words)
            and number == before
            and words[-1].end >= start
            and _is_letter(text[start]) == _is_letter(text[words[-1].end - 1])
        )
        if goes_on:
            words[-1] = Word(words[-1].start, max(end, words[-1].end), words[-1].first, token)
        else:
            words.append(Word(start, end, token, token))
        before = number
    return words


def _is_letter(character: str) -> bool:
    return character.isalnum() or character == "_"


def _words_of_characters(
    words: Sequence[tuple[int, int]], characters: Sequence[tuple[int, int]]
) -> list[Word]:
    results: list[Word] = []
    token = 0
    for start, end in words:
        while token < len(characters) and characters[token][1] <= start:
            token += 1
        first, at = -1, token
        while at < len(characters) and characters[at][0] < end:
            if characters[at][0] < characters[at][1] and first < 0:
                first = at
            at += 1
        results.append(Word(start, end, first, at - 1) if first >= 0 else Word(start, end))
    return results
