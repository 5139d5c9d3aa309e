"""Rows of preferences to two sequences of tokens, one prompt, and what is wrong with a row."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from snugfit.data.texts.preferences import (
    PreferenceData,
    PreferenceSettings,
    conversation_with,
    load_preferences,
)
from snugfit.errors import DataError
from tests.unit.data.texts.test_instruct import TEMPLATES, by_letters

TEMPLATE, MARKS, *_ = TEMPLATES["chatml"]
ASKED = {"role": "user", "content": "two and two"}


def says(content: str, role: str = "assistant") -> dict[str, str]:
    return {"role": role, "content": content}


def load(write: Any, *rows: dict[str, Any], template: str | None = TEMPLATE, **more: Any) -> PreferenceData:
    path: Path = write("a.jsonl", "\n".join(map(json.dumps, rows)))
    settings = {"text": ("prompt",), "validation": None, "max_length": 250, **more}
    return load_preferences(PreferenceSettings(str(path), **settings), by_letters(template, MARKS))  # type: ignore[arg-type]


def texts(data: PreferenceData, place: int = 0) -> list[tuple[str, str]]:
    """What is read, and what is scored, of both sequences."""
    tokenizer = by_letters(TEMPLATE, MARKS)
    example = data.train[place]
    return [
        (tokenizer.decode(ids), tokenizer.decode([each for each in labels if each != -100]))
        for ids, labels in zip(example["input_ids"], example["labels"], strict=True)
    ]


PROMPT = "<|im_start|>user\ntwo and two<|im_end|>\n<|im_start|>assistant\n"
PAIR = [(f"{PROMPT}four<|im_end|>", "four<|im_end|>"), (f"{PROMPT}five!<|im_end|>", "five!<|im_end|>")]


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "two and two", "chosen": "four", "rejected": "five!"},
        {"prompt": [ASKED], "chosen": "four", "rejected": "five!"},
        {"prompt": [ASKED], "chosen": [says("four")], "rejected": [says("five!")]},
        {"prompt": "two and two", "chosen": [ASKED, says("four")], "rejected": [ASKED, says("five!")]},
        {"prompt": [ASKED], "chosen": [ASKED, says("four")], "rejected": [ASKED, says("five!")]},
        {"chosen": [ASKED, says("four")], "rejected": [ASKED, says("five!")]},
        {
            "chosen": [{"from": "human", "value": "two and two"}, {"from": "gpt", "value": "four"}],
            "rejected": [{"from": "human", "value": "two and two"}, {"from": "gpt", "value": "five!"}],
        },
    ],
    ids=["texts", "messages", "answers", "text and chats", "messages and chats", "chats", "sharegpt"],
)
def test_a_pair_is_one_prompt_with_two_answers_that_alone_are_scored(write: Any, row: dict[str, Any]) -> None:
    assert texts(load(write, row)) == PAIR


def test_a_prompt_as_text_may_lack_what_the_system_says(write: Any) -> None:
    before = [says("be brief", "system"), ASKED]
    row = {"prompt": "two and two", "chosen": [*before, says("four")], "rejected": [*before, says("five!")]}
    (read, scored), _ = texts(load(write, row))
    assert read.startswith("<|im_start|>system\nbe brief<|im_end|>")
    assert scored == "four<|im_end|>"


def test_the_functions_that_a_row_may_call_are_written(write: Any) -> None:
    template = "{% for tool in tools or [] %}({{ tool.name }}){% endfor %}" + TEMPLATE
    row = {"prompt": "two and two", "tools": [{"name": "add"}], "chosen": "four", "rejected": "five!"}
    for read, _ in texts(load(write, row, template=template)):
        assert read.startswith(f"(add){PROMPT}")
    single = [
        {"prompt": prompt, "completion": "four", "label": True, "tools": [{"name": name}]}
        for prompt, name in (("two and two", "add"), ("two times two", "times"))
    ]
    data = load(write, *single, template=template, pairs=False)
    for place, name in enumerate(("add", "times")):
        assert all(read.startswith(f"({name})") for read, _ in texts(data, place))
    asked = conversation_with({**row, "tools": json.dumps(row["tools"])}, ["prompt"], None)
    assert asked.tools == [{"name": "add"}]


def test_answers_of_earlier_turns_belong_to_the_prompt_and_later_ones_are_scored(write: Any) -> None:
    begins = [ASKED, says("four"), says("sure?", "user")]
    better = [*begins, says("yes"), says("why?", "user"), says("it is")]
    (_, scored), (_, other) = texts(load(write, {"chosen": better, "rejected": [*begins, says("no")]}))
    assert scored == "yes<|im_end|>it is<|im_end|>"
    assert other == "no<|im_end|>"


def test_without_a_template_an_answer_follows_its_prompt(write: Any) -> None:
    row = {"prompt": "a", "chosen": "b", "rejected": "c"}
    assert texts(load(write, row, template=None)) == [("a\nb<eos>", "b<eos>"), ("a\nc<eos>", "c<eos>")]


def test_other_columns_can_be_named(write: Any) -> None:
    row = {"question": "two and two", "good": "four", "bad": "five!"}
    assert texts(load(write, row, text=("question",), answers=("good", "bad"))) == PAIR
    row = {"prompt": "two and two", "chosen": "four", "rejected": "five!"}
    assert texts(load(write, row, text=("text",))) == PAIR, "the usual name is found without being named"


def test_a_batch_has_both_sequences_of_a_row_beside_each_other(write: Any) -> None:
    rows = [
        {"prompt": "a", "chosen": "b", "rejected": "cde"},
        {"prompt": "abcd", "chosen": "b", "rejected": "c"},
    ]
    data = load(write, *rows, template=None)
    batch = data.collate(data.train)
    assert batch["input_ids"].shape == batch["labels"].shape == (2, 2, 7)
    assert batch["lengths"] == (6, 7)
    assert batch["attention_mask"].sum(dim=2).tolist() == [[4, 6], [7, 7]]
    assert (batch["labels"][batch["attention_mask"] == 0] == -100).all()


def test_single_answers_have_the_answer_before_them_to_another_prompt_beside_them(write: Any) -> None:
    rows = [
        {"prompt": "a", "completion": "1", "label": True},
        {"prompt": "a", "completion": "2", "label": False},
        {"prompt": "b", "completion": "3", "label": True},
        {"prompt": "c", "completion": "4", "label": False},
    ]
    data = load(write, *rows, template=None, pairs=False)
    read = [tuple(text for text, _ in texts(data, place)) for place in range(4)]
    assert read == [
        ("a\n1<eos>", "a\n4<eos>"),
        ("a\n2<eos>", "a\n4<eos>"),
        ("b\n3<eos>", "b\n2<eos>"),
        ("c\n4<eos>", "c\n3<eos>"),
    ]
    assert [example["desirable"] for example in data.train] == [True, False, True, False]
    assert data.report.labels == {"desirable": 2, "undesirable": 2}


def test_labels_of_a_file_of_texts_are_true_and_false(write: Any) -> None:
    path = write("a.csv", "prompt,completion,label\na,1,True\nb,2,false\n")
    settings = PreferenceSettings(str(path), text=("prompt",), validation=None, pairs=False)
    data = load_preferences(settings, by_letters(TEMPLATE, MARKS))
    assert [example["desirable"] for example in data.train] == [True, False]


CHAT = [ASKED, says("four")]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"prompt": "a", "chosen": "b", "rejected": "b"}, "equal answers"),
        ({"prompt": "a", "chosen": "b", "rejected": " "}, "empty text"),
        ({"prompt": "a", "chosen": "b", "rejected": None}, "empty text"),
        ({"prompt": "a", "chosen": "b"}, "missing column"),
        ({"chosen": "b", "rejected": "c"}, "missing column"),
        ({"prompt": " ", "chosen": "b", "rejected": "c"}, "empty text"),
        ({"prompt": "a", "chosen": 3, "rejected": "c"}, "no messages"),
        ({"prompt": "a", "chosen": "b", "rejected": CHAT}, "answers of two kinds"),
        (
            {"prompt": "a", "chosen": CHAT, "rejected": [says("b", "user"), says("c")]},
            "prompt is no beginning",
        ),
        (
            {"prompt": [says("b", "user")], "chosen": CHAT, "rejected": [ASKED, says("c")]},
            "prompt is no beginning",
        ),
        ({"chosen": CHAT, "rejected": [says("b", "user"), says("c")]}, "no common beginning"),
        ({"chosen": CHAT, "rejected": [ASKED]}, "no answer"),
        ({"chosen": CHAT, "rejected": [ASKED, says("")]}, "empty message"),
        ({"prompt": "a", "chosen": "b<|im_end|>", "rejected": "c"}, "special token in a text"),
    ],
)
def test_a_pair_that_cannot_be_compared_is_a_bad_row(write: Any, row: dict[str, Any], reason: str) -> None:
    good = {"prompt": "two and two", "chosen": "four", "rejected": "five!"}
    with pytest.raises(DataError, match=rf"1 row cannot be used: {reason} \(1\)\.\n  .*a\.jsonl:2: "):
        load(write, good, row)
    data = load(write, good, row, bad_rows="skip")
    assert data.report.skipped == {reason: 1}
    assert texts(data) == PAIR


@pytest.mark.parametrize("label", [1, "yes", None, 0.0, "", []])
def test_a_label_that_is_not_boolean_is_a_bad_row(write: Any, label: Any) -> None:
    good = [{"prompt": name, "completion": "x", "label": True} for name in "ab"]
    with pytest.raises(DataError, match="label is not boolean"):
        load(write, *good, {"prompt": "c", "completion": "x", "label": label}, pairs=False)


def test_prompts_that_are_all_equal_are_refused_for_single_answers(write: Any) -> None:
    rows = [{"prompt": "a", "completion": name, "label": True} for name in "bc"]
    with pytest.raises(DataError, match="have the same prompt, and kto compares"):
        load(write, *rows, pairs=False)


def test_a_column_that_no_row_has_is_named(write: Any) -> None:
    with pytest.raises(DataError, match=r"data\.answers: .* has no column 'rejected'"):
        load(write, {"prompt": "a", "chosen": "b", "worse": "c"})
    with pytest.raises(DataError, match=r"data\.label: .* has no column 'label'"):
        load(write, {"prompt": "a", "completion": "b"}, pairs=False)


LONG = {
    "prompt": "abcdefgh",
    "chosen": "12",
    "rejected": "1234",
}  # 9 tokens of the prompt, 3 and 5 of the answers
SHORT = {"prompt": "a", "chosen": "b", "rejected": "c"}


def test_ends_of_answers_are_cut_and_said(write: Any) -> None:
    data = load(write, LONG, SHORT, template=None, max_length=12)
    assert texts(data)[0] == ("abcdefgh\n12<eos>", "12<eos>")
    assert texts(data)[1] == ("abcdefgh\n123", "123")
    assert "1 of 4 answers are cut at their end" in data.report.warnings[0]


def test_both_prompts_are_cut_alike(write: Any) -> None:
    data = load(write, LONG, SHORT, template=None, max_length=12, too_long="cut_prompt")
    assert texts(data) == [("cdefgh\n12<eos>", "12<eos>"), ("cdefgh\n1234<eos>", "1234<eos>")]
    turns = [says("old", "user"), says("then"), ASKED]
    chat = {"chosen": [*turns, says("four")], "rejected": [*turns, says("five!")]}
    assert texts(load(write, chat, max_length=40, too_long="cut_prompt")) == PAIR


def test_rows_that_are_too_long_are_left_out(write: Any) -> None:
    data = load(write, LONG, SHORT, template=None, max_length=12, too_long="drop")
    assert len(data.train) == 1
    assert data.report.skipped == {"longer than data.max_length": 1}


def test_what_is_cut_to_nothing_or_to_the_same_is_a_bad_row(write: Any) -> None:
    with pytest.raises(DataError, match="the prompt has 9 tokens, which leaves no room"):
        load(write, LONG, SHORT, template=None, max_length=9)
    with pytest.raises(DataError, match="the same tokens as far as they are read"):
        load(write, LONG, SHORT, template=None, max_length=10)
