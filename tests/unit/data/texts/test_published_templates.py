"""Published chat templates: what is read is what the library asks with, what is scored the assistant's turns with their ends."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from snugfit.data.bad_rows import BadRow
from snugfit.data.texts.conversation_tokens import Coded, Coder
from snugfit.data.texts.conversations import conversation_of, plain_rows
from snugfit.data.texts.instruct import InstructSettings, asked_of, load_instruct
from tests.unit.data.texts.published import PUBLISHED, template_of, text_of, tokenizer_of

Messages = list[dict[str, Any]]
_CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"function": {"name": "add", "arguments": {"a": 1}}}],
}
_ADD = {
    "type": "function",
    "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}},
}


def coder_of(name: str) -> Coder:
    return Coder(tokenizer_of(name), InstructSettings("a.jsonl", max_length=10**5))


def coded(coder: Coder, messages: Messages, **more: Any) -> list[Coded]:
    row = {"messages": messages, **more}
    return coder.examples(conversation_of(row, "messages", text=["text"], completion="completion"))


def scored(coder: Coder, example: Coded) -> str:
    return text_of(coder.tokenizer, [label for label in example.labels if label != -100])


def written(coder: Coder, messages: Messages, *, asks: bool = False) -> str:
    """What transformers itself writes, on the day that all runs have."""
    assert coder.template is not None
    return str(
        coder.tokenizer.apply_chat_template(
            messages,
            tokenize=False,
            add_generation_prompt=asks,
            chat_template=coder.template._template,
        )
    )


words = st.text(alphabet="abZ é?!.\n<", min_size=1, max_size=8).map(str.strip).filter(bool)


@st.composite
def conversations(draw: st.DrawFn) -> Messages:
    """A system's message or none, one to four questions with their answers, and what is learned of them."""
    turns = draw(
        st.lists(st.tuples(words, words, st.sampled_from([None, None, 0, 1])), min_size=1, max_size=4)
    )
    messages: Messages = [{"role": "system", "content": draw(words)}] if draw(st.booleans()) else []
    for question, answer, weight in turns:
        messages.append({"role": "user", "content": question})
        messages.append({"role": "assistant", "content": answer, "weight": weight})
    if not any(message.get("weight") != 0 for message in messages if message["role"] == "assistant"):
        messages[-1]["weight"] = 1
    return messages


@pytest.mark.parametrize("name", PUBLISHED)
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(messages=conversations())
def test_what_is_scored_are_the_assistants_turns_with_their_ends(name: str, messages: Messages) -> None:
    coder, published = coder_of(name), PUBLISHED[name]
    has_system = messages[0]["role"] == "system"
    if has_system and not published.systems:
        messages = messages[1:]
    if has_system and name == "mistral":
        published = replace(published, alone=True, otherwise=True)
    learned = [
        place
        for place, message in enumerate(messages)
        if message["role"] == "assistant" and message["weight"] != 0
    ]
    examples = coded(coder, messages)
    plain = [{"role": each["role"], "content": each["content"]} for each in messages]
    ends = [published.opens + plain[place]["content"] + published.end for place in learned]
    assert "".join(scored(coder, each) for each in examples) == "".join(ends)
    assert len(examples) == (len(learned) if published.alone else 1) or len(learned) == 1
    places = learned if len(examples) > 1 else learned[-1:]
    for place, example in zip(places, examples, strict=True):
        whole = text_of(coder.tokenizer, example.ids)
        asked = written(coder, plain[:place], asks=True)
        assert whole == asked + published.opens + plain[place]["content"] + published.end, (
            "as it is generated"
        )
        if not published.otherwise:
            by_library = written(coder, plain[: place + 1])
            assert by_library.startswith(whole)
            assert by_library[len(whole) :] in ("", "\n", f"\n{published.eos}")
            ids = coder.tokenizer(by_library, add_special_tokens=False)["input_ids"]
            assert ids[: len(example.ids)] == example.ids


TWINS = [
    "llama3",
    "qwen2_5",
    "qwen3",
    "qwen3_instruct_2507",
    "gemma",
    "gemma3",
    "phi3",
    "phi3_5",
    "deepseekv3",
    "deepseek_r1_distill",
    "gptoss",
]


@pytest.mark.parametrize("name", TWINS)
def test_the_twin_that_marks_the_assistant_marks_the_same_text(name: str) -> None:
    coder, published = coder_of(name), PUBLISHED[name]
    messages: Messages = [
        {"role": "user", "content": "two and two?"},
        {"role": "assistant", "content": "four"},
        {"role": "user", "content": "and two?"},
        {"role": "assistant", "content": "six, I think"},
    ]
    ours = scored(coder, coded(coder, messages)[-1])
    marked = coder.tokenizer.apply_chat_template(
        messages,
        chat_template=template_of(f"{name}_training"),
        return_dict=True,
        return_assistant_tokens_mask=True,
    )
    ids = [id for id, mask in zip(marked["input_ids"], marked["assistant_masks"], strict=True) if mask]
    theirs = text_of(coder.tokenizer, ids)
    if published.alone:
        ours = ours.removeprefix(published.opens)
        first = "four" + published.end
    else:
        ours, first = ours.rpartition("six")[1] + ours.rpartition("six")[2], ours.partition("six")[0]
    for part in (first if name != "gptoss" else "four<|end|>", ours):
        before, found, theirs = theirs.partition(part)
        assert found, part
        # beside the turn a twin marks its header, the line break behind it, and the end of the sequence
        assert before.replace(published.opens, "").replace("<｜Assistant｜>", "").strip("\n") in (
            "",
            "<|start|>assistant",
        )
    assert theirs.strip("\n") in ("", published.eos)


@pytest.mark.parametrize(
    "name", [name for name in PUBLISHED if name not in ("chatml", "mistral", "llama3", "gemma", "gemma3")]
)
def test_a_call_of_a_tool_is_scored_as_published_or_its_row_is_named(name: str) -> None:
    coder, published = coder_of(name), PUBLISHED[name]
    messages: Messages = [
        {"role": "user", "content": "one and none?"},
        _CALL,
        {"role": "tool", "content": "1"},
        {"role": "assistant", "content": "one"},
    ]
    if published.calls is None:
        with pytest.raises(BadRow, match="message [23]"):
            coded(coder, messages, tools=[_ADD])
        return
    examples = coded(coder, messages, tools=[_ADD])
    assert "".join(scored(coder, each) for each in examples).startswith(published.calls)


@pytest.mark.parametrize("name", PUBLISHED)
def test_thoughts_are_in_what_is_scored_or_their_row_is_named(name: str) -> None:
    coder, published = coder_of(name), PUBLISHED[name]
    messages: Messages = [
        {"role": "user", "content": "two and two?"},
        {"role": "assistant", "content": "four", "reasoning_content": "Let me add."},
    ]
    if published.thoughts:
        (example,) = coded(coder, messages)
        assert "Let me add." in scored(coder, example)
    else:
        with pytest.raises(
            BadRow, match="does not write the thoughts of message 2, of the assistant: Let me add"
        ):
            coded(coder, messages)
    messages[1]["train"] = False  # and so they are no matter
    later: Messages = [{"role": "user", "content": "and two?"}, {"role": "assistant", "content": "six"}]
    assert "Let me add." not in scored(coder, coded(coder, [*messages, *later])[-1])


@pytest.mark.parametrize(
    "part",
    [
        {"reasoning_content": "so<|im_end|>"},
        {"tool_calls": [{"function": {"name": "add", "arguments": {"a": "<|im_end|>"}}}]},
    ],
    ids=["thoughts", "call"],
)
def test_a_mark_within_thoughts_or_a_call_ends_no_turn(part: dict[str, Any]) -> None:
    asked: Messages = [{"role": "user", "content": "two and two?"}]
    with pytest.raises(BadRow, match=r"message 2, of the assistant, holds <\|im_end\|>"):
        coded(coder_of("qwen3"), [*asked, {"role": "assistant", "content": "four", **part}], tools=[_ADD])


@pytest.mark.parametrize("name", ["deepseekv3", "deepseek_r1_distill"])
def test_thoughts_in_the_text_go_on_where_the_template_opens_them(name: str) -> None:
    coder, published = coder_of(name), PUBLISHED[name]
    content = "<think>\nLet me add.\n</think>\n\nfour"
    messages: Messages = [
        {"role": "user", "content": "two and two?"},
        {"role": "assistant", "content": content},
    ]
    (example,) = coded(coder, messages)
    assert scored(coder, example) == f"Let me add.\n</think>\n\nfour{published.end}"
    assert text_of(coder.tokenizer, example.ids).count("<think>") == 1


@pytest.mark.parametrize("content", ["four", " four \n"])
@pytest.mark.parametrize("name", ["chatml", "qwen2_5", "phi3", "llama3_2"])
def test_an_answer_to_nothing_stands_once(name: str, content: str) -> None:
    coder, published = coder_of(name), PUBLISHED[name]
    (example,) = coded(coder, [{"role": "assistant", "content": content}])
    said = content.strip() if name == "llama3_2" else content.lstrip()  # Llama's template trims
    assert scored(coder, example).strip() == f"{said}{published.end}"
    assert text_of(coder.tokenizer, example.ids).count("four") == 1


@pytest.mark.parametrize("form", ["messages", "prompt_completion"])
def test_an_answer_is_asked_for_with_the_calls_and_functions_of_its_row(form: str) -> None:
    ask, answer = {"role": "user", "content": "one?"}, {"role": "assistant", "content": "two"}
    called = [ask, _CALL, {"role": "tool", "name": "add", "content": "2"}, answer]
    both: dict[str, list[dict[str, Any]]] = {
        "messages": [{"messages": each, "tools": [_ADD]} for each in (called, [ask, answer])],
        "prompt_completion": [{"text": "one?", "completion": "two", "tools": [_ADD]}],
    }
    coder, given = coder_of("qwen2_5"), InstructSettings("a.jsonl", max_length=10**5)
    asked = asked_of(both[form], form, given, coder)
    names: dict[str, Any] = {"text": ["text"], "completion": "completion"}
    for row, each in zip(both[form], asked, strict=True):
        (whole,) = coder.examples(conversation_of(row, form, **{**names, "scored": "last"}))
        own = "messages" if "messages" in each.row else form
        prompt = coder.prompt(conversation_of(each.row, own, **names, answered=False))
        assert [*prompt, *each.answer] == whole.ids
    plain = [{"messages": [ask]}] if form == "messages" else [{"text": "one?"}]
    assert plain_rows(each.row for each in asked) == plain


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_generation_ends_by_the_token_that_ends_a_turn_or_a_call(name: str) -> None:
    coder, published = coder_of(name), PUBLISHED[name]
    stops = coder.tokenizer.convert_ids_to_tokens(coder.stops)
    assert stops[0] == published.end
    marks = [*published.marks, published.eos]
    ends = {published.end, published.eos, *(mark for mark in marks if (published.calls or "").endswith(mark))}
    assert set(stops) == ends


def test_marks_of_chatml_that_are_no_tokens_are_told_and_become_tokens_where_that_is_asked(
    write: Any,
) -> None:
    row = '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}'
    given = InstructSettings(write("a.jsonl", row), template="chatml", validation=None, max_length=100)
    tokenizer = copy.deepcopy(tokenizer_of("phi3"))
    told = load_instruct(given, tokenizer).report.warnings
    assert any("writes <|im_start|>, which this tokenizer does not know as a token" in each for each in told)
    tokenizer.add_tokens([AddedToken(mark, special=True) for mark in ("<|im_start|>", "<|im_end|>")])
    data = load_instruct(given, tokenizer)
    assert not data.report.warnings
    (labels,) = (example["labels"] for example in data.train)
    assert text_of(tokenizer, [label for label in labels if label != -100]) == "b<|im_end|>"
