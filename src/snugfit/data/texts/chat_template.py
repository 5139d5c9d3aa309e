"""Conversations as a tokenizer's chat template writes them, and the part of that which is scored.

What is scored is found by comparing renderings: of the conversation up to a turn with the template's request for an answer, and with
the answer. So it holds what the template makes of an answer, and ends with its own end of turn, whatever token that is.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from snugfit.data.bad_rows import BadRow, shorten
from snugfit.data.texts.conversations import THOUGHTS, Conversation, Message
from snugfit.errors import DataError, SettingError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

T = TypeVar("T")

CHATML = "chatml"
TURN_MARKS = TURN_START, TURN_END = "<|im_start|>", "<|im_end|>"
"""The marks of ChatML before and after a turn: tokens of a tokenizer that is made for conversations."""

_ANSWER = "An answer of which nothing else is written."
"""Text by which an answer is found in what a template writes."""

_FUNCTION = "some_function_of_no_use"
"""A function by whose call the end of one is found."""

DATE = datetime.datetime(2024, 7, 26)
"""The day that a template writes which asks for today's: another day would be another text, and a run could not go on overnight."""
_TODAY = "strftime_now"
"""The function of transformers by which a template asks for today's date."""

_DIRECTIVES = "aAwdbBmyYHIpMSfjUWcxXGuV"
"""Letters of the parts of a date's form; a minus before one leaves its zeros out."""

_THINKS, _THOUGHT = "<think>", "</think>"
"""The marks around thoughts within the text of an answer."""


class Span(NamedTuple):
    """A part of a text, from one character to another."""

    start: int
    end: int


@dataclass(frozen=True)
class Rendered:
    """A text, and the parts of it that are scored."""

    text: str
    spans: tuple[Span, ...]


def set_template(
    tokenizer: PreTrainedTokenizerBase, template: str | None, folder: Path | None = None
) -> dict[str, str]:
    """Give the tokenizer another chat template: "chatml", or a file's; return the sha256 of the file by its name.

    Raises:
        DataError: there is no such file.
    """
    if template is None:
        return {}
    if template == CHATML:
        tokenizer.chat_template = _chatml(tokenizer)
        return {}
    path = Path(template).expanduser()
    path = path if folder is None else folder / path
    try:
        content = path.read_bytes()
        tokenizer.chat_template = content.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            "data.template",
            f"{template} cannot be read: {getattr(error, 'strerror', None) or 'it is no UTF-8'}",
            f"Name {CHATML}, or a file with a Jinja template.",
        ) from error
    return {template: hashlib.sha256(content).hexdigest()}


def _chatml(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return ChatML; a turn ends with the end-of-sequence token where the tokenizer has no `<|im_end|>`, as no text could end a generation."""
    end = f"'{TURN_END}'" if TURN_END in tokenizer.get_vocab() else "eos_token"
    return (
        f"{{% for message in messages %}}{{{{ '{TURN_START}' + message['role'] + '\\n' + message['content'] + {end} + '\\n' }}}}{{% endfor %}}"
        f"{{% if add_generation_prompt %}}{{{{ '{TURN_START}assistant\\n' }}}}{{% endif %}}"
    )


def special_marks(tokenizer: PreTrainedTokenizerBase) -> frozenset[str]:
    """Return the special tokens of a tokenizer, as texts hold them."""
    added = (str(token) for token in tokenizer.added_tokens_decoder.values() if token.special)
    return frozenset(filter(None, (*added, *tokenizer.all_special_tokens)))  # "" is in every text


def check_marks(messages: Sequence[Message], marks: Collection[str]) -> None:
    """Refuse messages that hold one of these marks, in what is said, thought or called.

    Raises:
        BadRow: names the message and the mark.
    """
    for number, message in enumerate(messages, 1):
        texts = _content(message), *(str(message.get(key, "")) for key in (THOUGHTS[0], "tool_calls"))
        mark = next((mark for mark in marks if any(mark in text for text in texts)), None)
        if mark is not None:
            raise BadRow(
                "special token in a text",
                f"message {number}, of the {message['role']}, holds {mark}, which the model takes for a mark",
            )


def prints_date(template: object) -> bool:
    """Return whether a chat template writes today's date, for which `DATE` stands here.

    >>> prints_date("{{ strftime_now('%d %b %Y') }}"), prints_date(None)
    (True, False)
    """
    return _TODAY in str(template)


class ChatTemplate:
    """The chat template of a tokenizer.

    `marks_in_text` are marks of ChatML that are no tokens, `tail` is what it writes after an answer, `turn_end` the part of that up to its first token that is no text, None where there is
    none.

    Raises:
        SettingError: it does not parse, or refuses a question with its answer.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        from jinja2.exceptions import TemplateError

        self._tokenizer = tokenizer
        added = tokenizer.added_tokens_decoder.values()
        # Gemma has white space among its added tokens, which ends no turn
        self._ends = {mark for mark in (*map(str, added), *tokenizer.all_special_tokens) if mark.strip()}
        self._marks = special_marks(tokenizer)
        template = str(tokenizer.get_chat_template())
        self.prints_date = prints_date(template)
        self._template = _on_one_day(template) if self.prints_date else template
        self.marks_in_text = tuple(mark for mark in TURN_MARKS if mark in template and mark not in self._ends)
        self._thoughts = next(
            (key for key in THOUGHTS if re.search(rf"""\.{key}\b|["']{key}["']""", template)), THOUGHTS[0]
        )
        try:
            self.tail, self.turn_end = self._find_end_of_turn()
        except (TemplateError, TypeError, ValueError) as error:
            line = getattr(error, "lineno", None)
            raise SettingError(
                "data.template",
                f"the chat template of the tokenizer cannot be used{'' if line is None else f' (its line {line})'}: {error}",
                f"Correct it, or give another: data.template={CHATML}, or a file.",
            ) from error

    @property
    def end_ids(self) -> tuple[int, ...]:
        """The tokens by which a generation stops: that which ends a turn, if one does, and that which ends a call of a tool where it is another."""
        marks = filter(None, (self._mark_at_end(self.turn_end or ""), self._end_of_call()))
        return tuple(int(self._tokenizer.convert_tokens_to_ids(mark)) for mark in marks)

    def prompt(self, messages: Sequence[Message], tools: list[Any] | None = None) -> str:
        """Return messages with the template's request for an answer.

        Raises:
            BadRow: the template refuses them, or leaves a call of a tool out.
        """

        def asked(messages: Sequence[Message]) -> str:
            text = self._written(messages, tools, asks=True)
            for number, message in enumerate(messages, 1):
                if not all(name in text for name in _names_of_calls(message)):
                    raise _lost_calls(number)
            return text

        return self._in_some_form(messages, asked)

    def rendered(self, conversation: Conversation) -> list[Rendered]:
        """Return the conversation with all its scored turns, or once for each of them where the template writes earlier turns otherwise, or ends none.

        Raises:
            BadRow: the template refuses it, or leaves a message out; a message holds a special token.
        """
        check_marks(conversation.messages, self._marks)
        last = conversation.scored[-1]
        return self._in_some_form(
            conversation.messages[: last + 1],
            lambda messages: self._rendered(messages, conversation.scored, conversation.tools),
        )

    def _in_some_form(self, messages: Sequence[Message], make: Callable[[Sequence[Message]], T]) -> T:
        """Return what is made of messages in the first form in which the template takes them.

        Raises:
            BadRow: it takes none; as of the usual form.
        """
        first_error: BadRow | None = None
        for form in _forms(messages):
            try:
                return make([self._with_thoughts(message) for message in form])
            except BadRow as bad:
                first_error = first_error or bad
        assert first_error is not None  # there is a form at least
        raise first_error

    def _with_thoughts(self, message: Message) -> Message:
        """Return a message with its thoughts under the key by which the template reads them."""
        if THOUGHTS[0] not in message:
            return message
        others = {key: value for key, value in message.items() if key != THOUGHTS[0]}
        return {**others, self._thoughts: message[THOUGHTS[0]]}

    def _rendered(
        self, messages: Sequence[Message], scored: Sequence[int], tools: list[Any] | None
    ) -> list[Rendered]:
        turns = [self._turn(messages[: place + 1], tools) for place in scored]
        whole = self._written(messages, tools)
        # where no token of the template ends a turn, that of a sequence is put behind it, which has its place at the end alone
        if (self.turn_end is not None or len(turns) == 1) and all(
            whole.startswith(asked + answer) for asked, answer in turns
        ):
            asked, answer = turns[-1]
            spans = tuple(Span(len(each), len(each) + len(own)) for each, own in turns)
            together = [Rendered(asked + answer, spans)]
        else:
            together = [
                Rendered(asked + answer, (Span(len(asked), len(asked) + len(answer)),))
                for asked, answer in turns
            ]
        self._check_there(messages, together[-1].text)
        return together

    def _turn(self, messages: Sequence[Message], tools: list[Any] | None) -> tuple[str, str]:
        """Return the text before the last message, and what the template writes of it up to the end of the turn."""
        content, whole = _content(messages[-1]), self._written(messages, tools)
        asked = self._asked(messages, tools, whole)
        # a template may open an answer otherwise than it writes one down, with a <think>, or change it by what it holds
        if whole.startswith(asked) and whole.endswith(self.tail) and len(whole) > len(asked) + len(self.tail):
            body = whole[len(asked) : len(whole) - len(self.tail)]
            around = body.replace(content.strip(), "", 1)
            if not all(name in around for name in _names_of_calls(messages[-1])):
                raise _lost_calls(len(messages))
            turn = body + (self.turn_end or "")
        elif messages[-1].get("tool_calls"):
            turn = self._call(asked, whole, messages)
        else:
            turn = (self._after_mark(asked, whole, content) or _behind(asked, content)) + (
                self.turn_end or ""
            )
        self._check_answer(messages, turn)
        return asked, turn

    def _asked(self, messages: Sequence[Message], tools: list[Any] | None, whole: str) -> str:
        """Return the text before the last message, after which its answer is generated."""
        if len(messages) > 1:
            return self._written(messages[:-1], tools, asks=True)
        # transformers asks for no answer to nothing: the assistant begins where its text does
        text, content = whole.removesuffix(self.tail), _content(messages[-1]).strip()
        before, match, _ = text.rpartition(content) if content else ("", "", text)
        return before if match else text

    def _after_mark(self, asked: str, whole: str, content: str) -> str:
        """Return an answer as the template writes it after the mark by which it asks for one, whatever else it has changed; "" where that is unknown."""
        text, answer = whole.removesuffix(self.tail), content.strip()
        if not answer or not text.rstrip().endswith(answer):
            return ""
        before = text[: text.rindex(answer)].rstrip()
        marked = any(before.endswith(mark) and asked.endswith(mark) for mark in self._ends)
        return text[len(before) :] if marked else ""

    def _check_answer(self, messages: Sequence[Message], turn: str) -> None:
        """Refuse an answer of which the template leaves something out: what is said, or the thoughts before it."""
        answer, thoughts = _parts_of(messages[-1])
        where = f"message {len(messages)}, of the assistant"
        if answer not in turn:
            raise BadRow("lost message", f"the template does not write {where}: {shorten(answer)}")
        if thoughts not in turn:
            raise BadRow(
                "lost thoughts",
                f"the template does not write the thoughts of {where}: {shorten(thoughts)}. Remove them, or write them in its content",
            )

    def _call(self, asked: str, whole: str, messages: Sequence[Message]) -> str:
        """Return what the template writes of a call of a tool, which may end with a mark of its own."""
        before = asked if whole.startswith(asked) else asked.rstrip().removesuffix(_THINKS)
        call = whole[len(before) :].rstrip() if whole.startswith(before) else ""
        end = self._mark_at_end(call)
        if not end or not all(name in call.removesuffix(end) for name in _names_of_calls(messages[-1])):
            raise _lost_calls(len(messages))
        return call

    def _mark_at_end(self, text: str) -> str:
        """Return the mark that a text ends with, the longest; "" where it ends with none."""
        return max((mark for mark in self._ends if text.endswith(mark)), key=len, default="")

    def _end_of_call(self) -> str:
        """Return the mark by which the template ends a call of a tool; "" where it writes none, or ends it as an answer."""
        if self.turn_end is None:
            return ""  # a call ends with the end of a sequence too, and some templates write several of them
        function = {"name": _FUNCTION, "arguments": {}}
        call = {"type": "function", "id": "000000000", "function": function}
        asked: list[Message] = [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "", "tool_calls": [call]},
        ]
        try:
            turn = self._in_some_form(asked, lambda messages: self._turn(messages, None)[1])
        except BadRow:
            return ""
        return "" if turn.endswith(self.turn_end) else self._mark_at_end(turn)

    def _check_there(self, messages: Sequence[Message], text: str) -> None:
        """Refuse a conversation of which the template leaves out what was said; earlier thoughts and calls it may."""
        for number, message in enumerate(messages, 1):
            content = "" if message.get("tool_calls") else _parts_of(message)[0]
            as_json = json.dumps(content, ensure_ascii=False)[1:-1]  # as templates write what a tool gives
            if content not in text and not (message["role"] == "tool" and as_json in text):
                raise BadRow(
                    "lost message",
                    f"the template does not write message {number}, of the {message['role']}: {shorten(content)}",
                )

    def _find_end_of_turn(self) -> tuple[str, str | None]:
        question, answer = {"role": "user", "content": "a"}, {"role": "assistant", "content": _ANSWER}
        _, separator, tail = self._apply([question, answer], None).rpartition(_ANSWER)
        if not separator:
            return "", None
        places = [(tail.index(mark), -len(mark), mark) for mark in self._ends if mark in tail]
        if not places:
            return tail, None
        at, _, mark = min(places)
        end = at + len(mark)
        while follows := next((mark for mark in self._ends if mark and tail.startswith(mark, end)), None):
            end += len(follows)  # several tokens at once end it
        return tail, tail[:end]

    def _written(self, messages: Sequence[Message], tools: list[Any] | None, *, asks: bool = False) -> str:
        from jinja2.exceptions import TemplateError

        try:
            return self._apply(messages, tools, asks=asks)
        except (TemplateError, TypeError, KeyError, ValueError) as error:
            raise BadRow("refused by the template", f"the chat template refuses it: {error}") from error

    def _apply(self, messages: Sequence[Message], tools: list[Any] | None, *, asks: bool = False) -> str:
        return str(
            self._tokenizer.apply_chat_template(
                list(messages),
                tools=tools,
                chat_template=self._template,
                add_generation_prompt=asks,
                tokenize=False,
            )
        )


def _on_one_day(template: str) -> str:
    """Return a template with a function of its own in place of transformers' that gives today's date.

    It stands in the first line, so that lines keep their numbers, and an empty text behind it keeps Jinja from taking a line break away.
    """
    written = {f"%{letter}": DATE.strftime(f"%{letter}") for letter in _DIRECTIVES}
    written |= {f"%-{each[1]}": text.lstrip("0") or "0" for each, text in written.items()}
    parts = "".join(f"|replace('{each}', {text!r})" for each, text in written.items())
    return f"{{% macro {_TODAY}(format) %}}{{{{ format{parts} }}}}{{% endmacro %}}{{{{ '' }}}}{template}"


def _content(message: Message) -> str:
    return str(message.get("content") or "")


def _parts_of(message: Message) -> tuple[str, str]:
    """Return what a message says, and the thoughts of the assistant before that.

    >>> _parts_of({"role": "assistant", "content": "<think>two and two</think> four"})
    ('four', 'two and two')
    """
    content = _content(message)
    if message["role"] != "assistant":
        return content.strip(), ""
    within, _, answer = content.rpartition(_THOUGHT)
    thoughts = next((message[key] for key in THOUGHTS if message.get(key)), within)
    return answer.strip(), str(thoughts).strip().removeprefix(_THINKS).strip()


def _behind(asked: str, content: str) -> str:
    r"""Return an answer behind the text that asks for it, which may have begun its thoughts.

    >>> _behind("<assistant><think>\n", "<think>\ntwo and two</think> four")
    'two and two</think> four'
    """
    begun = asked.rstrip().endswith(_THINKS) and content.lstrip().startswith(_THINKS)
    return content.lstrip().removeprefix(_THINKS).lstrip("\n") if begun else content


def _names_of_calls(message: Message) -> list[str]:
    """Return the functions that a message calls."""
    return [each["function"]["name"] for each in message.get("tool_calls", ())]


def _lost_calls(number: int) -> BadRow:
    return BadRow(
        "calls of tools",
        f"the template writes no call of a tool where it asks for an answer, and message {number} is one",
    )


def _forms(messages: Sequence[Message]) -> Iterator[Sequence[Message]]:
    """Yield messages in the forms in which templates take calls of tools: with arguments as mappings, or as JSON text."""
    yield messages
    if any(message.get("tool_calls") for message in messages):
        yield [_with_text_arguments(message) for message in messages]


def _with_text_arguments(message: Message) -> Message:
    """Return a message whose calls of tools have their arguments as JSON text."""
    calls = [
        {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
        for call in message.get("tool_calls", ())
    ]
    return {**message, "tool_calls": calls} if calls else message
