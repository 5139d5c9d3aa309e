"""What a chat template writes, and the part of it that is scored: exactly the assistant's turns with their own ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from snugfit.data.bad_rows import BadRow
from snugfit.data.texts.chat_template import ChatTemplate
from snugfit.data.texts.conversation_tokens import Coder
from snugfit.data.texts.conversations import Conversation, conversation_of
from snugfit.data.texts.instruct import InstructSettings, load_instruct
from snugfit.errors import DataError, SettingError
from tests.unit.data.texts.test_instruct import by_letters

_EACH = "{% for m in messages %}"
_ASKED = "{% endfor %}{% if add_generation_prompt %}"
_CHATML = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
_CHATML_ASKED = _ASKED + "<|im_start|>assistant\n{% endif %}"
_CHATML_MARKS = ["<|im_start|>", "<|im_end|>"]
TEMPLATES = {  # of the shapes that are published: the template, its marks, and the end of a turn
    "chatml": (_EACH + _CHATML + _CHATML_ASKED, _CHATML_MARKS, "<|im_end|>"),
    "qwen 2.5: a system's message of its own": (
        "{% if messages[0].role != 'system' %}<|im_start|>system\nBe kind.<|im_end|>\n{% endif %}"
        + _EACH
        + _CHATML
        + _CHATML_ASKED,
        _CHATML_MARKS,
        "<|im_end|>",
    ),
    "qwen 3: thoughts in the last turn alone": (
        _EACH
        + "{% if m.role == 'assistant' and loop.last %}<|im_start|>assistant\n<think>\n</think>\n{{ m.content }}<|im_end|>\n"
        + "{% else %}"
        + _CHATML
        + "{% endif %}"
        + _CHATML_ASKED,
        _CHATML_MARKS,
        "<|im_end|>",
    ),
    "phi 3: the end of the sequence after all": (
        _EACH
        + "<|{{ m.role }}|>\n{{ m.content }}<|end|>\n"
        + _ASKED
        + "<|assistant|>\n{% else %}{{ eos_token }}{% endif %}",
        ["<|system|>", "<|user|>", "<|assistant|>", "<|end|>"],
        "<|end|>",
    ),
    "gemma: no system": (
        "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
        + _EACH
        + "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<end_of_turn>\n"
        + _ASKED
        + "<start_of_turn>model\n{% endif %}",
        ["<start_of_turn>", "<end_of_turn>"],
        "<end_of_turn>",
    ),
    "llama 3.2: today's date": (
        "{{ bos_token }}<|start_header_id|>system<|end_header_id|>\n\nToday: {{ strftime_now('%d %b %Y') }}<|eot_id|>"
        + _EACH
        + "<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}<|eot_id|>"
        + _ASKED
        + "<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}",
        ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
        "<|eot_id|>",
    ),
    "mistral: the system's message with the last question": (
        "{{ bos_token }}{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}"
        "{% endif %}{% endfor %}{% for m in messages %}{% if m.role == 'user' %}[INST]{% if loop.index0 == ns.last and "
        "messages[0].role == 'system' %}{{ messages[0].content }}\n\n{% endif %}{{ m.content }}[/INST]{% elif m.role == 'assistant' %}"
        " {{ m.content }}{{ eos_token }}{% endif %}{% endfor %}",
        ["[INST]", "[/INST]"],
        "<eos>",
    ),
    "cohere 2: two marks at the end": (
        _EACH
        + "<|{{ m.role }}|>{{ m.content }}<|END_RESPONSE|><|END_OF_TURN|>"
        + _ASKED
        + "<|assistant|>{% endif %}",
        ["<|system|>", "<|user|>", "<|assistant|>", "<|END_RESPONSE|>", "<|END_OF_TURN|>"],
        "<|END_RESPONSE|><|END_OF_TURN|>",
    ),
}
OFTEN_SPLIT = (
    "qwen 3: thoughts in the last turn alone",
    "mistral: the system's message with the last question",
)


def coder(name: str, **more: Any) -> Coder:
    template, marks, _ = TEMPLATES[name]
    tokenizer = by_letters(template, marks)
    tokenizer.model_max_length = 10**6
    return Coder(tokenizer, InstructSettings("a.jsonl", **{"max_length": 10**5, **more}))


def conversation(*contents: str, system: str | None = None, **more: Any) -> Conversation:
    before = [] if system is None else [{"role": "system", "content": system}]
    turns = [
        {"role": ("user", "assistant")[place % 2], "content": each} for place, each in enumerate(contents)
    ]
    return conversation_of(
        {"messages": [*before, *turns]}, "messages", text=["text"], completion="completion", **more
    )


def texts(made: Coder, whole: Conversation) -> list[tuple[str, str]]:
    """What is read and what is scored of each example."""
    return [
        (
            "".join(made.tokenizer.convert_ids_to_tokens(each.ids)),
            "".join(made.tokenizer.convert_ids_to_tokens([label for label in each.labels if label != -100])),
        )
        for each in made.examples(whole)
    ]


words = st.text(alphabet="abc ?!.\n", min_size=1, max_size=8).map(str.strip).filter(bool)


@pytest.mark.parametrize("name", TEMPLATES)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(turns=st.lists(st.tuples(words, words), min_size=1, max_size=4), system=st.none() | words)
def test_the_assistants_turns_with_their_ends_are_scored_and_nothing_else(
    name: str, turns: list[tuple[str, str]], system: str | None
) -> None:
    made, end = coder(name), TEMPLATES[name][2]
    if name.startswith("gemma"):
        system = None
    whole = conversation(*(each for turn in turns for each in turn), system=system)
    scored = [part for _, part in texts(made, whole)]
    answers = [answer for _, answer in turns]
    if name.startswith("qwen 3"):
        answers = [f"<think>\n</think>\n{answer}" for answer in answers]
    if name.startswith("mistral"):
        answers = [f" {answer}" for answer in answers]
    ended = [answer + end for answer in answers]
    assert "".join(scored) == "".join(ended)
    if name not in OFTEN_SPLIT:
        assert len(scored) == 1, "one example has all turns"


@pytest.mark.parametrize("name", TEMPLATES)
def test_what_is_read_is_what_the_library_writes_up_to_the_end_of_the_turn(name: str) -> None:
    made, end = coder(name), TEMPLATES[name][2]
    whole = conversation(
        "two and two?", "four", "and two?", "six", system=None if "gemma" in name else "Be brief."
    )
    assert made.template is not None
    template = made.template._template  # with one date for all days
    written = made.tokenizer.apply_chat_template(list(whole.messages), tokenize=False, chat_template=template)
    read, _ = texts(made, whole)[-1]
    assert written.startswith(read) and read.endswith(end)
    asked = made.tokenizer.convert_ids_to_tokens(made.prompt(conversation("two and two?", answered=False)))
    first, _ = texts(made, conversation("two and two?", "four"))[0]
    if name not in OFTEN_SPLIT:
        assert first.startswith("".join(asked)), (
            "an answer is generated after what was read before it in training"
        )


def test_where_earlier_turns_are_written_otherwise_each_turn_is_an_example_as_it_is_generated() -> None:
    made = coder("qwen 3: thoughts in the last turn alone")
    first, last = texts(made, conversation("two and two?", "four", "and two?", "six"))
    assert first[0].endswith("assistant\n<think>\n</think>\nfour<|im_end|>")
    assert "assistant\nfour<|im_end|>" in last[0] and last[1] == "<think>\n</think>\nsix<|im_end|>"


@pytest.mark.parametrize(
    "date",
    [
        "{{ strftime_now('%d %b %Y') }}",
        "{% set form = '%d %b %Y' %}{{ strftime_now(form) }}",
        "{% if strftime_now is defined %}{{ strftime_now(format='%-d %b %Y') }}{% endif %}",
    ],
)
def test_todays_date_is_one_day_whenever_the_run_goes_on_and_however_a_template_asks_for_it(
    date: str,
) -> None:
    template, marks, _ = TEMPLATES["llama 3.2: today's date"]
    tokenizer = by_letters(template.replace("{{ strftime_now('%d %b %Y') }}", date), marks)
    made = Coder(tokenizer, InstructSettings("a.jsonl", max_length=10**5))
    ((read, _),) = texts(made, conversation("two and two?", "four"))
    assert "Today: 26 Jul 2024<|eot_id|>" in read
    assert made.template is not None and made.template.prints_date
    assert not coder("chatml").template.prints_date


_CALLS = "{% for c in m.tool_calls %}"
CALLING = {  # templates that write calls of tools in their own ways, and what is scored of one
    "in the turn": (
        _EACH
        + "<|im_start|>{{ m.role }}\n{% if m.tool_calls %}"
        + _CALLS
        + "{{ c.function | tojson }}{% endfor %}{% else %}"
        "{{ m.content }}{% endif %}<|im_end|>\n" + _CHATML_ASKED,
        _CHATML_MARKS,
        '{"name": "add", "arguments": {"a": 1}}<|im_end|>',
    ),
    "with an end of its own": (
        _EACH
        + "<|im_start|>{{ m.role }}\n{% if m.tool_calls %}"
        + _CALLS
        + "{{ c.function.name }}{% endfor %}<|call|>{% else %}"
        "{{ m.content }}<|im_end|>\n{% endif %}" + _CHATML_ASKED,
        [*_CHATML_MARKS, "<|call|>"],
        "add<|call|>",
    ),
    "with arguments as text": (
        _EACH
        + "<|im_start|>{{ m.role }}\n{% if m.tool_calls %}"
        + _CALLS
        + "{{ c.function.name + c.function.arguments }}{% endfor %}"
        "{% else %}{{ m.content }}{% endif %}<|im_end|>\n" + _CHATML_ASKED,
        _CHATML_MARKS,
        'add{"a": 1}<|im_end|>',
    ),
}


@pytest.mark.parametrize("name", CALLING)
def test_a_call_of_a_tool_is_scored_as_the_template_writes_it(name: str) -> None:
    template, marks, scored = CALLING[name]
    tokenizer = by_letters(template, marks)
    made = Coder(tokenizer, InstructSettings("a.jsonl", max_length=10**5))
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    messages = [
        {"role": "user", "content": "add"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "1"},
        {"role": "assistant", "content": "one"},
    ]
    whole = conversation_of({"messages": messages}, "messages", text=["text"], completion="completion")
    assert "".join(part for _, part in texts(made, whole)) == f"{scored}one<|im_end|>"
    silent = by_letters(_EACH + _CHATML + _CHATML_ASKED, _CHATML_MARKS)
    with pytest.raises(
        BadRow,
        match="the template writes no call of a tool where it asks for an answer, and message 2 is one",
    ):
        Coder(silent, InstructSettings("a.jsonl", max_length=10**5)).examples(whole)


def test_where_no_token_of_the_template_ends_a_turn_the_end_of_a_sequence_is_learned_behind_each() -> None:
    """It was learned behind the last one alone: an answer before it went on with the next question, and a call with what the tool gives."""
    template = (
        _EACH
        + "[{{ m.role }}] {% for c in m.tool_calls or [] %}<call>{{ c.function.name }}</call>{% endfor %}{{ m.content or '' }}\n"
        + _ASKED
        + "[assistant] {% endif %}"
    )
    made = Coder(by_letters(template, ["<call>", "</call>"]), InstructSettings("a.jsonl", max_length=10**5))
    call = {"type": "function", "function": {"name": "add", "arguments": {}}}
    messages = [
        {"role": "user", "content": "1 + 1"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "2"},
        {"role": "assistant", "content": "two"},
    ]
    whole = conversation_of({"messages": messages}, "messages", text=["text"], completion="completion")
    assert texts(made, whole) == [
        ("[user] 1 + 1\n[assistant] <call>add</call><eos>", "<call>add</call><eos>"),
        ("[user] 1 + 1\n[assistant] <call>add</call>\n[tool] 2\n[assistant] two<eos>", "two<eos>"),
    ]
    assert made.tokenizer.convert_ids_to_tokens(list(made.stops)) == ["<eos>"]


@pytest.mark.parametrize("name", ["add", "i"])  # the second is a letter of the mark that ends a turn
@pytest.mark.parametrize("said", [None, "Let me add."])
def test_a_call_that_the_template_leaves_out_is_named_whatever_is_said_with_it(
    name: str, said: str | None
) -> None:
    call = {"type": "function", "function": {"name": name, "arguments": {"a": 1}}}
    messages = [
        {"role": "user", "content": "1 + 1"},
        {"role": "assistant", "content": said, "tool_calls": [call]},
    ]
    silent = by_letters(_EACH + _CHATML + _CHATML_ASKED, _CHATML_MARKS)
    whole = conversation_of({"messages": messages}, "messages", text=["text"], completion="completion")
    with pytest.raises(BadRow, match="the template writes no call of a tool .* and message 2 is one"):
        Coder(silent, InstructSettings("a.jsonl", max_length=10**5)).examples(whole)


def test_what_a_tool_gave_and_the_template_leaves_out_is_named() -> None:
    result = 'it says "21"'
    messages = [
        {"role": "user", "content": "How warm?"},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "look", "arguments": {}}}]},
        {"role": "tool", "content": result},
        {"role": "assistant", "content": "21 degrees"},
    ]
    whole = conversation_of({"messages": messages}, "messages", text=["text"], completion="completion")
    calls = "{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}"
    of_others = _CHATML.replace("{{ m.content", calls + "{{ m.content")
    assert calls in of_others
    for written, kept in (("", False), ("{{ m.content | tojson }}", True)):
        template = (
            f"{_EACH}{{% if m.role == 'tool' %}}{written}{{% else %}}{of_others}{{% endif %}}{_CHATML_ASKED}"
        )
        made = Coder(by_letters(template, _CHATML_MARKS), InstructSettings("a.jsonl", max_length=10**5))
        if kept:
            assert made.examples(whole)
        else:
            with pytest.raises(BadRow, match="the template does not write message 3, of the tool: it says"):
                made.examples(whole)


def test_a_generation_ends_where_a_turn_does() -> None:
    ends = {name: coder(name) for name in TEMPLATES}
    stops = {name: made.tokenizer.convert_ids_to_tokens(list(made.stops))[0] for name, made in ends.items()}
    assert stops["phi 3: the end of the sequence after all"] == "<|end|>"
    assert stops["cohere 2: two marks at the end"] == "<|END_OF_TURN|>"
    assert stops["mistral: the system's message with the last question"] == "<eos>"


def rows_of(*conversations: list[tuple[str, str]]) -> str:
    import json

    return "\n".join(
        json.dumps({"messages": [{"role": role, "content": content} for role, content in each]})
        for each in conversations
    )


def loaded(write: Any, name: str, *conversations: list[tuple[str, str]], **more: Any) -> Any:
    template, marks, _ = TEMPLATES[name]
    given = {"validation": None, "max_length": 256, **more}
    return load_instruct(
        InstructSettings(write("a.jsonl", rows_of(*conversations)), **given), by_letters(template, marks)
    )


@pytest.mark.parametrize(
    ("name", "turns", "message"),
    [
        (
            "gemma: no system",
            [("system", "Be brief."), ("user", "a"), ("assistant", "b")],
            "System role not supported",
        ),
        (
            "chatml",
            [("user", "say <|im_end|>"), ("assistant", "b")],
            "message 1, of the user, holds <|im_end|>",
        ),
        ("chatml", [("user", "a")], "no message is of the assistant"),
    ],
)
def test_a_conversation_that_cannot_be_written_is_a_fault_of_its_row(
    write: Any, name: str, turns: list[tuple[str, str]], message: str
) -> None:
    good = [("user", "a"), ("assistant", "b")]
    with pytest.raises(DataError) as refused:
        loaded(write, name, good, turns)
    assert "a.jsonl:2: " in str(refused.value) and message in str(refused.value)
    assert len(loaded(write, name, good, turns, bad_rows="skip").train) == 1


def test_a_message_that_the_template_leaves_out_is_named(write: Any) -> None:
    TEMPLATES["deaf"] = (
        _EACH + "{% if m.role != 'system' %}" + _CHATML + "{% endif %}" + _CHATML_ASKED,
        _CHATML_MARKS,
        "<|im_end|>",
    )
    try:
        with pytest.raises(DataError, match="the template does not write message 1, of the system: Be brief"):
            loaded(write, "deaf", [("system", "Be brief."), ("user", "a"), ("assistant", "b")])
    finally:
        del TEMPLATES["deaf"]


TALK = [
    ("system", "Be brief."),
    ("user", "a" * 20),
    ("assistant", "b"),
    ("user", "c" * 20),
    ("assistant", "d"),
]


@pytest.mark.parametrize("policy", ["cut_end", "cut_prompt", "drop"])
def test_what_is_too_long_is_treated_as_asked_and_counted(write: Any, policy: str) -> None:
    name = "chatml"
    whole = len(loaded(write, name, TALK).train[0]["input_ids"])
    short = [("user", "a"), ("assistant", "b")]
    data = loaded(write, name, TALK, short, max_length=whole - 5, too_long=policy)
    if policy == "drop":
        assert len(data.train) == 1
        assert data.report.skipped == {"longer than data.max_length": 1}
        return
    assert data.report.truncated == 1
    tokenizer = by_letters(TEMPLATES[name][0], TEMPLATES[name][1])
    text = "".join(tokenizer.convert_ids_to_tokens(data.train[0]["input_ids"]))
    warned = any("does not learn where to stop" in each for each in data.report.warnings)
    if policy == "cut_end":
        assert text.startswith("<|im_start|>system\nBe brief.") and "d<|im_end|>" not in text and warned
    else:
        assert (
            text
            == "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n"
            + "c" * 20
            + "<|im_end|>\n<|im_start|>assistant\nd<|im_end|>"
        )
        assert not warned


def test_a_prompt_that_is_too_long_alone_loses_its_beginning(write: Any) -> None:
    data = loaded(
        write, "chatml", [("user", "a" * 30 + "z"), ("assistant", "b")], max_length=20, too_long="cut_prompt"
    )
    tokenizer = by_letters(TEMPLATES["chatml"][0], TEMPLATES["chatml"][1])
    text = "".join(tokenizer.convert_ids_to_tokens(data.train[0]["input_ids"]))
    assert len(data.train[0]["input_ids"]) == 20
    assert text.endswith("<|im_start|>assistant\nb<|im_end|>")


def test_a_template_of_another_name_or_file_is_taken_and_one_that_does_not_parse_is_refused(
    write: Any, make_tokenizer: Any
) -> None:
    rows = write(
        "a.jsonl", rows_of([("user", "good"), ("assistant", "film"), ("user", "bad"), ("assistant", "book")])
    )
    plain = make_tokenizer("$A", eos_token="[SEP]")
    with pytest.raises(
        DataError,
        match="user, assistant, user, assistant needs a chat template.*data.template, such as chatml",
    ):
        load_instruct(InstructSettings(rows, validation=None, max_length=16), plain)
    taken = by_letters("", [])
    data = load_instruct(InstructSettings(rows, validation=None, max_length=200, template="chatml"), taken)
    scored = "".join(
        taken.convert_ids_to_tokens([label for label in data.train[0]["labels"] if label != -100])
    )
    assert scored == "film<eos>book<eos>", (
        "no text could end a generation, so that the end of the sequence ends a turn"
    )
    file = write(
        "mine.jinja", _EACH + "[{{ m.role }}]{{ m.content }}<eos>" + _ASKED + "[assistant]{% endif %}"
    )
    data = load_instruct(InstructSettings(rows, validation=None, max_length=200, template=str(file)), taken)
    assert str(file) in data.fingerprints
    broken = write("broken.jinja", "{% for m in %}")
    with pytest.raises(SettingError, match=r"data\.template: the chat template .* \(its line 1\)"):
        load_instruct(InstructSettings(rows, validation=None, template=str(broken), max_length=200), taken)
    with pytest.raises(DataError, match="there.jinja cannot be read"):
        load_instruct(
            InstructSettings(rows, validation=None, template="not/there.jinja", max_length=200),
            taken,
            folder=Path("/"),
        )


def test_the_end_of_a_turn_is_found_whatever_an_answer_holds() -> None:
    made = coder("chatml")
    assert isinstance(made.template, ChatTemplate)
    assert (made.template.tail, made.template.turn_end) == ("<|im_end|>\n", "<|im_end|>")


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_conversation_that_the_assistant_begins_is_scored_from_its_first_word_on(name: str) -> None:
    turns = [("assistant", "a"), ("user", "b c?"), ("assistant", "d.")]
    messages = [{"role": role, "content": content} for role, content in turns]
    whole = conversation_of({"messages": messages}, "messages", text=["text"], completion="completion")
    end = TEMPLATES[name][2]
    scored = "".join(part for _, part in texts(coder(name), whole))
    assert scored.startswith(f"a{end}") and scored.endswith(f"d.{end}")
    assert "b c?" not in scored


def test_a_template_that_refuses_an_assistant_who_begins_says_so_itself() -> None:
    strict = "{% if messages[0]['role'] != 'user' %}{{ raise_exception('the user begins') }}{% endif %}"
    template, marks, _ = TEMPLATES["chatml"]
    made = Coder(by_letters(strict + template, marks), InstructSettings("a.jsonl", max_length=100))
    messages = [{"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]
    whole = conversation_of(
        {"messages": [*messages, {"role": "assistant", "content": "c"}]},
        "messages",
        text=["text"],
        completion="completion",
    )
    with pytest.raises(BadRow, match="refuses it: the user begins"):
        made.examples(whole)
