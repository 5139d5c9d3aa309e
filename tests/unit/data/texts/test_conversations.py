"""Rows to conversations, in each of the forms, and what is wrong with a row."""

from __future__ import annotations

import json
from typing import Any

import pytest

from snugfit.data.bad_rows import BadRow
from snugfit.data.texts.conversations import (
    columns_of_form,
    conversation_of,
    lists_turns,
    prompt_columns,
    recognise,
    rows_to_answer,
    texts_in,
)

USER, ASSISTANT = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}


def made(row: dict[str, Any], form: str = "messages", **more: Any) -> Any:
    return conversation_of(row, form, text=["prompt"], completion="completion", **more)


def chat(*messages: Any, **more: Any) -> Any:
    return made({"messages": list(messages)}, **more)


@pytest.mark.parametrize(
    ("form", "row"),
    [
        ("messages", {"messages": [USER, ASSISTANT]}),
        ("messages", {"messages": json.dumps([USER, ASSISTANT])}),
        (
            "messages",
            {
                "messages": [
                    {**USER, "name": None},
                    {"role": "assistant", "content": [{"type": "text", "text": "Hello"}]},
                ]
            },
        ),
        (
            "sharegpt",
            {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]},
        ),
        ("alpaca", {"instruction": "Hi", "input": "", "output": "Hello"}),
        ("prompt_completion", {"prompt": "Hi", "completion": "Hello"}),
    ],
)
def test_every_form_comes_to_the_same_conversation(form: str, row: dict[str, Any]) -> None:
    conversation = made(row, form)
    assert (conversation.messages, conversation.scored) == ((USER, ASSISTANT), (1,))


def test_the_form_is_seen_by_the_columns() -> None:
    def seen(*columns: str) -> str:
        return recognise(columns, ["prompt"], "completion")

    assert seen("prompt", "completion", "messages") == "prompt_completion"  # which are named
    assert [
        seen("messages"),
        seen("conversations"),
        seen("instruction", "input", "output"),
        seen("text"),
    ] == [*("messages", "sharegpt", "alpaca", "prompt_completion")]
    assert recognise(["prompt", "completion"], ["text"], "completion") == "prompt_completion"
    assert columns_of_form("prompt_completion", prompt_columns(["prompt"], ["text"]), "completion") == {
        "data.text": ("prompt",),
        "data.completion": ["completion"],
    }
    assert lists_turns([{"from": "human", "value": "Hi"}]) and not lists_turns("Hi") and not lists_turns([])
    assert texts_in({"messages": [USER, {"role": "tool"}, ASSISTANT]}, "messages") == []
    assert texts_in({"messages": [USER, ASSISTANT]}, "messages") == ["Hi", "Hello"]


def test_what_the_system_says_in_a_column_of_its_own_stands_first_unless_the_turns_have_it() -> None:
    turns = [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]
    own = made({"conversations": turns, "system": "Be kind."}, "sharegpt")
    assert own.messages == ({"role": "system", "content": "Be kind."}, USER, ASSISTANT)
    assert own.scored == (2,)
    there = [{"from": "system", "value": "Be brief."}, *turns]
    both = made({"conversations": there, "system": "Be kind."}, "sharegpt")
    assert both.messages[0]["content"] == "Be brief." and len(both.messages) == 3
    assert made({"conversations": turns, "system": None}, "sharegpt").messages == (USER, ASSISTANT)


def test_an_instruction_has_its_input_under_it() -> None:
    conversation = made(
        {"instruction": "Add.", "input": "2 2", "output": "4", "system": "Be brief."}, "alpaca"
    )
    assert [each["content"] for each in conversation.messages] == ["Be brief.", "Add.\n\n2 2", "4"]


@pytest.mark.parametrize(
    ("scored", "keys", "places"),
    [
        ("all", ({}, {}), (1, 3)),
        ("last", ({}, {}), (3,)),
        ("all", ({"weight": 0}, {}), (3,)),
        ("last", ({"train": True}, {"train": False}), (1,)),
    ],
)
def test_which_answers_are_learned(
    scored: str, keys: tuple[dict[str, Any], ...], places: tuple[int, ...]
) -> None:
    first, last = ({**ASSISTANT, **each} for each in keys)
    conversation = chat(USER, first, USER, last, scored=scored)
    assert conversation.scored == places
    assert all(set(message) == {"role", "content"} for message in conversation.messages)


def test_calls_of_tools_have_mappings_as_arguments_and_no_nulls() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": null}'}}
    asked = {"role": "assistant", "content": None, "tool_calls": [call]}
    result = {"role": "tool", "content": "1", "tool_call_id": "1"}
    tool = {"type": "function", "function": {"name": "add", "description": None}}
    conversation = made({"messages": [USER, asked, result, ASSISTANT], "tools": json.dumps([tool])})
    (made_call,) = conversation.messages[1]["tool_calls"]
    assert made_call["function"] == {"name": "add", "arguments": {"a": 1}}
    assert conversation.tools == [{"type": "function", "function": {"name": "add"}}]
    assert conversation.scored == (1, 3)
    with pytest.raises(BadRow, match="message 2 calls a tool, and message 3 is of the user"):
        chat(USER, asked, USER, ASSISTANT)


def test_a_prompt_and_its_answer_may_be_lists_of_messages_of_which_the_answer_is_learned() -> None:
    row = {"prompt": [USER, ASSISTANT, USER], "completion": [ASSISTANT]}
    conversation = made(row, "prompt_completion")
    assert conversation.messages == (USER, ASSISTANT, USER, ASSISTANT)
    assert conversation.scored == (3,)
    assert made({"prompt": row["prompt"]}, "prompt_completion", answered=False).messages == (
        USER,
        ASSISTANT,
        USER,
    )
    ((asked, whole),) = rows_to_answer([row], "prompt_completion", ["prompt"], "completion")
    assert (asked, whole.messages, whole.scored) == (
        {"messages": row["prompt"]},
        conversation.messages,
        (3,),
    )


def test_calls_of_functions_in_older_forms_are_calls_of_tools() -> None:
    call = {"name": "add", "arguments": '{"a": 1}'}
    openai = [USER, {"role": "assistant", "content": None, "function_call": call}]
    openai += [{"role": "function", "name": "add", "content": "1"}, ASSISTANT]
    sharegpt = [
        {"from": "human", "value": "Hi"},
        {"from": "function_call", "value": json.dumps({"name": "add", "arguments": {"a": 1}})},
        {"from": "observation", "value": "1"},
        {"from": "gpt", "value": "Hello"},
    ]
    for conversation in (made({"messages": openai}), made({"conversations": sharegpt}, "sharegpt")):
        assert [each["role"] for each in conversation.messages] == ["user", "assistant", "tool", "assistant"]
        (made_call,) = conversation.messages[1]["tool_calls"]
        assert made_call == {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    several = json.dumps([{"name": name, "arguments": {}} for name in ("add", "sub")])
    two = made({"conversations": [sharegpt[0], {**sharegpt[1], "value": several}, *sharegpt[2:]]}, "sharegpt")
    assert [each["function"]["name"] for each in two.messages[1]["tool_calls"]] == ["add", "sub"]
    with pytest.raises(BadRow, match="the call of message 2 is text and no JSON"):
        made({"conversations": [sharegpt[0], {**sharegpt[1], "value": "add(1)"}]}, "sharegpt")


def test_a_prompt_is_what_stands_before_its_answer() -> None:
    assert chat(USER, ASSISTANT, answered=False).messages == (USER,)
    assert made({"prompt": "Hi"}, "prompt_completion", answered=False).messages == (USER,)


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        (None, "messages is null, not a list of messages"),
        ("Hi", "messages is text and no JSON"),
        ([], "messages is empty"),
        (["Hi"], "message 1 is text .Hi., not a message"),
        ([USER], "no message is of the assistant"),
        (
            [USER, {"role": "narrator", "content": "Once"}],
            "message 2 has the role 'narrator'; known are system",
        ),
        ([{"from": "narrator", "value": "Once"}], "message 1 is from 'narrator'"),
        ([USER, {"role": "assistant", "content": " "}], "message 2, of the assistant, is empty"),
        (
            [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, ASSISTANT],
            "'image_url'; texts alone",
        ),
        ([USER, {**ASSISTANT, "weight": 0}], "that it is not learned"),
        ([USER, {**ASSISTANT, "weight": 0.5}], "the weight of message 2 is 0.5; an answer is learned"),
        ([USER, {**ASSISTANT, "train": "false"}], "the weight of message 2 is 'false'"),
        ([{"role": "user", "content": 3}, ASSISTANT], "the content of message 1 is a whole number"),
        (
            [USER, {"role": "assistant", "tool_calls": [{"function": {}}]}],
            "a call of message 2 names no function",
        ),
        (
            [USER, {"role": "assistant", "tool_calls": [{"name": "add", "arguments": "[1"}]}],
            "arguments of add in message 2 is text and no JSON",
        ),
    ],
)
def test_a_row_that_is_no_conversation_is_told_why(messages: Any, reason: str) -> None:
    with pytest.raises(BadRow, match=reason):
        made({"messages": messages})
