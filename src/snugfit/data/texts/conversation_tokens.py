"""Conversations to tokens, of which those of answers and of the ends of their turns are scored."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from snugfit.data.bad_rows import BadRow
from snugfit.data.texts.chat_template import CHATML, ChatTemplate, Rendered, check_marks, special_marks
from snugfit.data.texts.conversations import THOUGHTS, Conversation
from snugfit.data.texts.token_rows import Example
from snugfit.data.texts.tokens import IGNORED_LABEL, special_frame

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

T = TypeVar("T")


class Limit(Protocol):
    """The tokens of an example at most, and the treatment of what is longer: cut_end, cut_prompt or drop."""

    @property
    def max_length(self) -> int: ...
    @property
    def too_long(self) -> str: ...


class Coder:
    """The way of a conversation into tokens, by the tokenizer's chat template, or without one."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, limit: Limit) -> None:
        self.tokenizer, self._limit = tokenizer, limit
        self.special = special_frame(tokenizer)
        end = tokenizer.eos_token_id
        self.end = self.special.suffix or (() if end is None else (int(end),))
        self.template = ChatTemplate(tokenizer) if tokenizer.chat_template else None
        self._marks = special_marks(tokenizer)
        self._trimming = frozenset(
            id for id, token in tokenizer.added_tokens_decoder.items() if token.lstrip or token.rstrip
        )

    @property
    def stops(self) -> tuple[int, ...]:
        """The tokens that end an answer."""
        own = () if self.template is None else self.template.end_ids
        return tuple(dict.fromkeys((*own, *self.end)))

    def examples(self, conversation: Conversation) -> list[Coded]:
        """Return the examples of a conversation, each of at most `max_length` tokens: one, where all its turns can be scored at once.

        Raises:
            BadRow: it cannot be written, or leaves no room for an answer.
        """
        if self.template is None:
            return [self._fitted(conversation, self._without_template(conversation))]
        rendered = self.template.rendered(conversation)
        if len(rendered) == 1:
            return [self._fitted(conversation, self._coded(rendered[0]))]
        return [
            self._fitted(
                replace(conversation, messages=conversation.messages[: place + 1], scored=(place,)),
                self._coded(each),
            )
            for place, each in zip(conversation.scored, rendered, strict=True)
        ]

    def prompt(self, conversation: Conversation) -> list[int]:
        """Return the tokens that ask for the answer to a conversation.

        Raises:
            BadRow: the template refuses it.
        """
        if self.template is None:
            (message,) = self._plain_turns(conversation, 1)
            return [*self.special.prefix, *self._plain(f"{message}\n")]
        return self._plain(self.template.prompt(conversation.messages, conversation.tools))

    def _fitted(self, conversation: Conversation, coded: Coded) -> Coded:
        """Return tokens that fit, of a conversation that may have to lose its oldest turns or the beginning of its prompt."""
        most, length = self._limit.max_length, len(coded.ids)
        if length <= most or self._limit.too_long == "drop":
            return coded
        if self._limit.too_long == "cut_prompt":
            shorter = without_oldest_turns(conversation)
            if shorter:
                coded = self._last_of(
                    first_fitting(shorter, lambda each: len(self._last_of(each).ids) <= most)
                )
            coded = self.without_beginning(coded, len(coded.ids) - most)
        remedy = "; data.too_long: cut_prompt cuts its beginning" if self._limit.too_long == "cut_end" else ""
        return coded.cut(most, remedy)._replace(length=length)

    def _last_of(self, conversation: Conversation) -> Coded:
        """Return the tokens up to the last answer."""
        assert self.template is not None  # which several turns need
        return self._coded(self.template.rendered(conversation)[-1])

    def without_beginning(self, coded: Coded, count: int) -> Coded:
        """Return tokens without the first `count` of the prompt, behind the tokenizer's own first ones; the last of the prompt stays."""
        first = (
            len(self.special.prefix) if coded.ids[: len(self.special.prefix)] == [*self.special.prefix] else 0
        )
        cut = max(0, min(count, coded.read - first - 1))
        return Coded(
            coded.ids[:first] + coded.ids[first + cut :],
            coded.labels[:first] + coded.labels[first + cut :],
            coded.length,
        )

    def _without_template(self, conversation: Conversation) -> Coded:
        check_marks(conversation.messages, self._marks)
        prompt, answer = self._plain_turns(conversation, 2)
        read = [*self.special.prefix, *self._plain(f"{prompt}\n")]
        return Coded.of(read, [*self._plain(answer), *self.end])

    def _plain_turns(self, conversation: Conversation, count: int) -> list[str]:
        roles = [message["role"] for message in conversation.messages]
        keys = {"tool_calls": "calls of tools", THOUGHTS[0]: "thoughts"}
        more = [words for key, words in keys.items() if any(each.get(key) for each in conversation.messages)]
        if roles != ["user", "assistant"][:count] or conversation.tools or more:
            within = f" with {' and '.join(more)}" if more else ""
            raise BadRow(
                "no chat template",
                f"a conversation of {', '.join(roles)}{within} needs a chat template, and the tokenizer has none: give data.template, such as {CHATML}",
            )
        return [str(message["content"]) for message in conversation.messages]

    def _coded(self, rendered: Rendered) -> Coded:
        """Return tokens and labels of a text of which some parts are scored."""
        assert self.template is not None
        coded = self._together(rendered)
        if coded is None:  # a token lies across the beginning of an answer, where a generation begins anew
            coded = self._piece_by_piece(rendered)
        ends = () if self.template.turn_end is not None else self.end
        return Coded([*coded.ids, *ends], [*coded.labels, *ends], len(coded.ids) + len(ends))

    def _together(self, rendered: Rendered) -> Coded | None:
        if not self.tokenizer.is_fast:
            return None
        tokens = self.tokenizer(
            rendered.text, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        ids, places = list(tokens["input_ids"]), tokens["offset_mapping"]
        if self._trimming:
            both = zip(ids, places, strict=True)
            places = [self._own_place(rendered.text, id, start, end) for id, (start, end) in both]
        edges = [edge for span in rendered.spans for edge in span]
        if any(start < edge < end for start, end in places for edge in edges):
            return None
        labels = [
            # what has no character of its own belongs to what follows it
            id if any(span.start <= start < span.end >= end for span in rendered.spans) else IGNORED_LABEL
            for id, (start, end) in zip(ids, places, strict=True)
        ]
        return Coded(ids, labels, len(ids))

    def _own_place(self, text: str, id: int, start: int, end: int) -> tuple[int, int]:
        """Return the characters of a token, without the white space that a mark such as Phi-3's takes with it."""
        if id not in self._trimming:
            return start, end
        whole = text[start:end]
        return start + len(whole) - len(whole.lstrip()), end - len(whole) + len(whole.rstrip())

    def _piece_by_piece(self, rendered: Rendered) -> Coded:
        ids: list[int] = []
        labels: list[int] = []
        at = 0
        for span in rendered.spans:
            read, scored = (
                self._plain(rendered.text[at : span.start]),
                self._plain(rendered.text[span.start : span.end]),
            )
            ids += [*read, *scored]
            labels += [*[IGNORED_LABEL] * len(read), *scored]
            at = span.end
        return Coded(ids, labels, len(ids))

    def _plain(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


class Coded(NamedTuple):
    """Tokens of an example, with -100 in place of those that are not scored, and how many there were before it was cut."""

    ids: list[int]
    labels: list[int]
    length: int

    @property
    def read(self) -> int:
        """Tokens before the first one that is scored."""
        return next(
            (place for place, label in enumerate(self.labels) if label != IGNORED_LABEL), len(self.ids)
        )

    def cut(self, most: int, remedy: str = "") -> Coded:
        """Return the first `most` tokens.

        Args:
            remedy: of a prompt that leaves no room, behind what is wrong with it.
        Raises:
            BadRow: none of them is scored.
        """
        if self.read >= most:
            raise BadRow(
                "prompt too long",
                f"the prompt has {self.read} tokens, which leaves no room for a completion in {most} (data.max_length){remedy}",
            )
        return Coded(self.ids[:most], self.labels[:most], self.length)

    def as_example(self) -> Example:
        """Return what a model is given."""
        return {"input_ids": self.ids, "attention_mask": [1] * len(self.ids), "labels": self.labels}

    @classmethod
    def of(cls, read: Sequence[int], scored: Sequence[int]) -> Coded:
        """Return what is read, and behind it what is scored."""
        return cls([*read, *scored], [*[IGNORED_LABEL] * len(read), *scored], len(read) + len(scored))


def without_oldest_turns(conversation: Conversation) -> list[Conversation]:
    """Return a conversation without its oldest turn, without its two oldest ones and so on, up to the last question, but with the system's messages."""
    messages = conversation.messages
    first = next(
        (place for place, each in enumerate(messages) if each["role"] not in ("system", "developer")), 0
    )
    shorter = []
    for begin in range(first + 1, conversation.scored[-1]):
        if messages[begin]["role"] == "user":
            cut = begin - first
            scored = tuple(place - cut for place in conversation.scored if place >= begin)
            remaining = (*messages[:first], *messages[begin:])
            shorter.append(replace(conversation, messages=remaining, scored=scored))
    return shorter


def first_fitting(shorter: Sequence[T], fits: Callable[[T], bool]) -> T:
    """Return the first that fits of what becomes shorter and shorter; the last, if none does.

    >>> first_fitting([9, 7, 5, 3], lambda length: length <= 5), first_fitting([9, 7], lambda length: length <= 5)
    (5, 7)
    """
    place = bisect_left(range(len(shorter)), True, key=lambda place: fits(shorter[place]))
    return shorter[min(place, len(shorter) - 1)]
