"""Rows to conversations: the forms in which data sets write them, and the faults of a row."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from snugfit.data.bad_rows import BadRow, check_encodable, kind_of, shorten, text_of

MESSAGES, SHAREGPT, ALPACA, PAIRS = "messages", "sharegpt", "alpaca", "prompt_completion"
FORMATS = (MESSAGES, SHAREGPT, ALPACA, PAIRS)

COLUMNS = {MESSAGES: "messages", SHAREGPT: "conversations"}
"""The column of the whole conversation, in the forms that have one."""

OPTIONAL = ("tools", "input", "system")
"""Columns that a conversation may have besides."""

PROMPT = "prompt"
_ALPACA = ("instruction", "output")
_ROLES = ("system", "developer", "user", "assistant", "tool")
_SPEAKERS = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "tool": "tool",
    "observation": "tool",
    "function_response": "tool",
}
"""Who speaks in ShareGPT's `from`, as a role."""

_LOOKED_AT = 8
"""First rows in which turns are looked for."""

_CALL = "function_call"
"""A call in OpenAI's older form, a key of a message, and in ShareGPT's, a speaker whose value is the call."""

THOUGHTS = ("reasoning_content", "reasoning", "thinking")
"""Keys of the assistant's thoughts before an answer, in data sets and in templates; a message has the first."""

MOST_ASKED = 64
"""Rows at most that a model is asked while it trains."""

Message = dict[str, Any]


@dataclass(frozen=True)
class Conversation:
    """Messages as chat templates take them: `role`, `content`, and what else the row had.

    `scored` are the places of the assistant's messages that are learned; `tools` are the functions that the assistant may call.
    """

    messages: tuple[Message, ...]
    scored: tuple[int, ...]
    tools: list[Any] | None = None
    columns: tuple[str, ...] = field(default=(), compare=False)


def lists_turns(value: Any) -> bool:
    """Return whether a value is a list of turns of a conversation, in the form of `messages` or of ShareGPT."""
    turns = value if isinstance(value, (list, tuple)) else ()
    return bool(turns) and all(
        isinstance(turn, Mapping) and ("role" in turn or {"from", "value"} <= turn.keys()) for turn in turns
    )


def texts_of_turns(value: Any) -> list[str]:
    """Return what is said in a list of turns; nothing of what is none."""
    if not lists_turns(value):
        return []
    try:
        return [message["content"] for message in messages_in(value, "messages") if message["content"]]
    except BadRow:
        return []


def texts_in(row: Mapping[str, Any], form: str) -> list[str]:
    """Return what is said in a conversation, whoever says it; nothing of a row that is none."""
    try:
        messages, _ = _listed(row, form)
    except BadRow:
        return []
    return [message["content"] for message in messages if message["content"]]


def prompt_columns(columns: Sequence[str], text: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of the prompt: those that are named, or `prompt` where none of that name is there.

    >>> prompt_columns(["prompt", "chosen"], ["text"]), prompt_columns(["question", "chosen"], ["question"])
    (('prompt',), ('question',))
    """
    return (PROMPT,) if PROMPT in columns and not {*text} & {*columns} else tuple(text)


def recognise(columns: Sequence[str], text: Sequence[str], completion: str) -> str:
    """Return the form of a table's rows, by its columns.

    >>> recognise(["messages", "id"], ["text"], "completion"), recognise(["instruction", "output"], ["text"], "completion")
    ('messages', 'alpaca')
    >>> recognise(["prompt", "completion", "messages"], ["text"], "completion")
    'prompt_completion'
    """
    there = set(columns)
    if completion in there and there.issuperset(prompt_columns(columns, text)):
        return PAIRS
    for form, column in COLUMNS.items():
        if column in there:
            return form
    return ALPACA if there.issuperset(_ALPACA) else PAIRS


def columns_of_form(form: str, text: Sequence[str], completion: str) -> dict[str, Sequence[str]]:
    """Return the columns that rows of a form must have, by the setting that asks for them."""
    if form == PAIRS:
        return {"data.text": text, "data.completion": [completion]}
    return {"data.format": _ALPACA if form == ALPACA else [COLUMNS[form]]}


def hint_of_form(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return how rows would be recognised as conversations, for those that lack a column of their form."""
    turns = next((name for row in rows[:_LOOKED_AT] for name in row if lists_turns(row[name])), None)
    if turns in (None, *COLUMNS.values()):
        return (
            f"Conversations are recognised by the column {' or '.join(COLUMNS.values())}, by {' and '.join(_ALPACA)}, or by those that data.text and "
            "data.completion name (data.format)."
        )
    return f"'{turns}' lists the turns of a conversation: data.train: {{chats: {{from: FILE, rename: {{{turns}: {COLUMNS[MESSAGES]}}}}}}}."


def conversation_of(
    row: Mapping[str, Any],
    form: str,
    *,
    text: Sequence[str],
    completion: str,
    scored: str = "all",
    answered: bool = True,
) -> Conversation:
    """Return the conversation of a row.

    Args:
        text, completion: columns of the prompt and of its answer, where the form is that of pairs.
        scored: "all" of the assistant's messages or the "last"; a message's own `train` or `weight` wins.
        answered: whether it has to end with an answer that is scored; a prompt to be answered has none.
    Raises:
        BadRow: it is none, or one that no assistant can learn from.
    """
    if form == PAIRS:
        messages, weights = _side(row, prompt_columns(list(row), text), "user")
        weights = [False] * len(weights)  # answers in the prompt are not what is learned
        if answered:
            answer, of_answer = _side(row, [completion], "assistant")
            messages, weights = [*messages, *answer], [*weights, *of_answer]
    elif form == ALPACA:
        messages = _alpaca(row, answered)
        weights = [None] * len(messages)
    else:
        messages, weights = _listed(row, form)
        if not answered and messages[-1]["role"] == "assistant":
            messages.pop()  # the answer that is there already
    _check_order(messages)
    answers = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    if not messages:
        raise BadRow("no messages", "there is nothing to answer")
    if answered and not answers:
        raise BadRow("no assistant", "no message is of the assistant, so that there is nothing to learn")
    learned = _learned(answers, weights, scored)
    if answered and not learned:
        raise BadRow(
            "nothing scored", "train or weight says of each message of the assistant that it is not learned"
        )
    return Conversation(tuple(messages), learned, tools_of(row))


def _learned(answers: Sequence[int], weights: Sequence[Any], scored: str) -> tuple[int, ...]:
    by_default = set(answers if scored == "all" else answers[-1:])
    own = {place: bool(weights[place]) for place in answers if weights[place] is not None}
    return tuple(place for place in answers if own.get(place, place in by_default))


def _message(role: str, content: str) -> Message:
    return {"role": role, "content": content}


def _side(row: Mapping[str, Any], columns: Sequence[str], role: str) -> tuple[list[Message], list[Any]]:
    """Return the messages of a prompt or of its answer, and what they say of being learned: a list of them, or what `role` says in text."""
    if len(columns) == 1 and lists_turns(row.get(columns[0])):
        return _messages(row[columns[0]], columns[0])
    return [_message(role, text_of(row, columns))], [None]


def _alpaca(row: Mapping[str, Any], answered: bool) -> list[Message]:
    context = [column for column in ("input",) if row.get(column)]
    prompt = "\n\n".join(text_of(row, [column]) for column in ("instruction", *context))
    before = [_message("system", text_of(row, ["system"]))] if row.get("system") else []
    answer = [_message("assistant", text_of(row, ["output"]))] if answered else []
    return [*before, _message("user", prompt), *answer]


def _listed(row: Mapping[str, Any], form: str) -> tuple[list[Message], list[Any]]:
    messages, weights = _messages(row.get(COLUMNS[form]), COLUMNS[form])
    if form == SHAREGPT and row.get("system") and messages[0]["role"] != "system":
        messages, weights = [_message("system", text_of(row, ["system"])), *messages], [None, *weights]
    return messages, weights


def messages_in(value: Any, column: str) -> list[Message]:
    """Return the messages that a column lists, in the form of `messages` or of ShareGPT.

    Raises:
        BadRow: it lists none, or one that cannot be used.
    """
    messages, _ = _messages(value, column)
    _check_order(messages)
    return messages


def _messages(value: Any, column: str) -> tuple[list[Message], list[Any]]:
    entries = _parsed(value, column)
    if not isinstance(entries, (list, tuple)) or not entries:
        raise BadRow("no messages", f"{column} is {_in_words(entries)}, not a list of messages")
    messages, weights = [], []
    for number, entry in enumerate(entries, 1):
        where = f"message {number}"
        if not isinstance(entry, Mapping):
            raise BadRow(
                "no message", f"{where} is {_in_words(entry)}, not a message with a role and a content"
            )
        own: Message = dict(_without_nulls(entry))
        weight = own.pop("weight", None)
        train = own.pop("train", None)
        weights.append(_checked_weight(weight if train is None else train, where))
        if "role" not in own and "from" in own:
            own = _renamed(own, where)
        messages.append(_checked(_with_tool_calls(own), where))
    return messages, weights


def _checked_weight(weight: Any, where: str) -> Any:
    """Return what a message says of being learned: nothing, or one of false and true."""
    if weight is not None and weight not in (0, 1):
        raise BadRow(
            "weight", f"the weight of {where} is {shorten(repr(weight))}; an answer is learned (1) or not (0)"
        )
    return weight


def _with_tool_calls(message: Message) -> Message:
    """Return a message whose call of a function, or its result, is in OpenAI's older form, in the one that templates take."""
    call = message.pop(_CALL, None)
    if call:
        message = {**message, "tool_calls": [call]}
    return {**message, "role": "tool"} if message.get("role") == "function" else message


def _renamed(entry: Message, where: str) -> Message:
    speaker = entry.pop("from")
    if speaker == _CALL:
        call = _parsed(entry.pop("value", None), f"the call of {where}")
        calls = call if isinstance(call, list) else [call]  # several at once are a list
        return {"role": "assistant", "content": None, "tool_calls": calls, **entry}
    role = _SPEAKERS.get(speaker.casefold() if isinstance(speaker, str) else "")
    if role is None:
        raise BadRow(
            "unknown role", f"{where} is from {shorten(repr(speaker))}; known are {', '.join(_SPEAKERS)}"
        )
    return {"role": role, "content": entry.pop("value", None), **entry}


def _checked(message: Message, where: str) -> Message:
    role = message.get("role")
    if role not in _ROLES:
        raise BadRow(
            "unknown role", f"{where} has the role {shorten(repr(role))}; known are {', '.join(_ROLES)}"
        )
    calls = _calls(message.get("tool_calls"), where)
    content = _content(message.get("content"), where)
    thoughts = _thoughts(message, where)
    if not content.strip() and not calls and not (role == "assistant" and thoughts):
        raise BadRow("empty message", f"{where}, of the {role}, is empty")
    check_encodable(content)
    more = {**({THOUGHTS[0]: thoughts} if thoughts else {}), **({"tool_calls": calls} if calls else {})}
    others = {key: value for key, value in message.items() if key not in (*THOUGHTS, "tool_calls")}
    return {**others, "content": content, **more}


def _thoughts(message: Message, where: str) -> str:
    """Return the thoughts of a message, under whichever key they are; none where they are empty."""
    key, thoughts = next(((key, message[key]) for key in THOUGHTS if message.get(key)), ("", ""))
    if not isinstance(thoughts, str):
        raise BadRow("not text", f"the {key} of {where} is {kind_of(thoughts)}, not text")
    check_encodable(thoughts)
    return thoughts if thoughts.strip() else ""


def _content(content: Any, where: str) -> str:
    """Return the text of a message: itself, or the texts of its parts."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, (list, tuple)):
        raise BadRow("not text", f"the content of {where} is {kind_of(content)}, not text")
    texts = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind != "text" or not isinstance(part.get("text"), str):
            raise BadRow(
                "not text",
                f"{where} has a part of the type {shorten(repr(kind))}; texts alone can be learned",
            )
        texts.append(part["text"])
    return "".join(texts)


def _calls(calls: Any, where: str) -> list[Any]:
    """Return calls of tools with their arguments as mappings, which templates take."""
    calls = _parsed(calls, f"tool_calls of {where}") or []
    if not isinstance(calls, (list, tuple)):
        raise BadRow("tool calls", f"tool_calls of {where} is {_in_words(calls)}, not a list")
    plain = []
    for call in calls:
        function = call.get("function", call) if isinstance(call, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise BadRow("tool calls", f"a call of {where} names no function")
        arguments = (
            _parsed(function.get("arguments"), f"the arguments of {function['name']} in {where}") or {}
        )
        if not isinstance(arguments, Mapping):
            raise BadRow(
                "tool calls",
                f"the arguments of {function['name']} in {where} are {_in_words(arguments)}, not named",
            )
        whole = {**function, "arguments": dict(arguments)}
        plain.append(
            {**call, "type": "function", "function": whole}
            if "function" in call
            else {"type": "function", "function": whole}
        )
    return plain


def tools_of(row: Mapping[str, Any]) -> list[Any] | None:
    """Return the functions that the assistant of a row may call.

    Raises:
        BadRow: `tools` is no list.
    """
    tools = _parsed(row.get("tools"), "tools")
    if not tools:
        return None
    if not isinstance(tools, (list, tuple)):
        raise BadRow("tools", f"tools is {_in_words(tools)}, not a list of functions")
    return [_without_nulls(tool) for tool in tools]


def _check_order(messages: Sequence[Message]) -> None:
    """Refuse a call of a tool whose result does not follow; the last message may be one."""
    for number, (message, after) in enumerate(itertools.pairwise(messages), 1):
        if message.get("tool_calls") and after["role"] != "tool":
            raise BadRow(
                "no result",
                f"message {number} calls a tool, and message {number + 1} is of the {after['role']}",
            )


def _parsed(value: Any, what: str) -> Any:
    """Return a value, read as JSON where it is text."""
    if not isinstance(value, str):
        return _without_nulls(value)
    if not value.strip():
        return None
    try:
        return _without_nulls(json.loads(value))
    except ValueError as error:
        raise BadRow("no JSON", f"{what} is text and no JSON ({error}): {shorten(value)}") from error


def _without_nulls(value: Any) -> Any:
    """Return a value without the empty keys that Arrow adds where another row has them."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(each) for key, each in value.items() if each is not None}
    if isinstance(value, (list, tuple)) or type(value).__name__ == "ndarray":
        return [_without_nulls(each) for each in value]
    return value


def _in_words(value: Any) -> str:
    return f"{kind_of(value)} ({shorten(value)})" if value else "empty" if value is not None else "null"


def rows_to_answer(
    rows: Iterable[Mapping[str, Any]],
    form: str,
    text: Sequence[str],
    completion: str,
    *,
    most: int = MOST_ASKED,
) -> list[tuple[dict[str, Any], Conversation]]:
    """Return the first rows as they are when their answers are asked for, each with the conversation up to that answer.

    A row has the columns of the prompt, or the messages before the last answer, and the functions that may be called.
    """
    asked: list[tuple[dict[str, Any], Conversation]] = []
    for row in rows:
        if len(asked) == most:
            break
        try:
            whole = conversation_of(row, form, text=text, completion=completion)
        except BadRow:
            continue
        last = max(place for place, message in enumerate(whole.messages) if message["role"] == "assistant")
        before = whole.messages[:last]
        answered = replace(whole, messages=whole.messages[: last + 1], scored=(last,))
        tools = {"tools": whole.tools} if whole.tools else {}
        prompt = prompt_columns(list(row), text)
        if form == PAIRS and not lists_turns(row[prompt[0]]):
            asked.append(({**{column: row[column] for column in prompt}, **tools}, answered))
        elif before:
            asked.append(({"messages": list(before), **tools}, answered))
    return asked


def plain_rows(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return rows to be answered whose messages are plain texts, without functions to call: the input of models that are registered or exported."""
    plain: list[dict[str, Any]] = []
    for row in rows:
        own = {key: value for key, value in row.items() if key != "tools"}
        messages = own.get(MESSAGES)
        if messages is not None:
            if any("tool_calls" in each or not each["content"].strip() for each in messages):
                continue
            own = {MESSAGES: [{"role": each["role"], "content": each["content"]} for each in messages]}
        plain.append(own)
    return plain
