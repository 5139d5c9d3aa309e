"""Prompts and completions to tokens, of which the completion's alone are scored."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from snugfit.data.texts.instruct import InstructSettings, load_instruct
from snugfit.errors import DataError

SHARED = Path(os.environ.get("SNUGFIT_SHARED_DATA", Path(__file__).parents[4] / "shared" / "data"))
CHAT = "{% for m in messages %}the {{ m.content }} {% endfor %}{% if add_generation_prompt %}very{% endif %}"


@pytest.fixture
def decoder(make_tokenizer):
    """A tokenizer as decoders have it: no frame, [SEP] (3) ends a text."""
    return make_tokenizer("$A", eos_token="[SEP]")


def settings(path: Path, **more) -> InstructSettings:
    return InstructSettings(path, **{"text": ("prompt",), "validation": None, "max_length": 16, **more})


def rows(*pairs: tuple[str, str]) -> str:
    return "\n".join(json.dumps({"prompt": prompt, "completion": answer}) for prompt, answer in pairs)


def test_the_completion_and_its_end_are_scored_and_nothing_else(write, decoder):
    path = write("a.jsonl", rows(("good film", "a bad book"), ("the", "null")))
    data = load_instruct(settings(path), decoder)
    assert data.train[0]["input_ids"] == [4, 6, 8, 5, 7, 3]
    assert data.train[0]["labels"] == [-100, -100, 8, 5, 7, 3]
    assert data.collate(data.train)["labels"][1].tolist() == [-100, 11, 3, -100, -100, -100]
    assert data.report.lines()[0] == "2 rows to train on, 0 to validate on"


def test_a_prompt_is_read_where_no_column_of_prompts_is_named_and_answered_alike(write, decoder):
    path = write("a.jsonl", rows(("good film", "a bad book")))
    data = load_instruct(settings(path, text=("text",)), decoder)
    assert data.train[0]["input_ids"] == [4, 6, 8, 5, 7, 3]
    assert data.example_rows == [{"prompt": "good film"}]


def test_the_frame_of_a_tokenizer_stands_around_the_whole(write, tokenizer):
    data = load_instruct(settings(write("a.jsonl", rows(("good", "film")))), tokenizer)
    assert data.train[0]["input_ids"] == [2, 4, 6, 3]
    assert data.train[0]["labels"] == [-100, -100, 6, 3]


def test_a_chat_template_is_used_and_not_scored(write, decoder):
    decoder.chat_template = CHAT
    data = load_instruct(settings(write("a.jsonl", rows(("good", "film")))), decoder)
    assert data.train[0]["input_ids"] == [9, 4, 13, 6, 3]
    assert data.train[0]["labels"] == [-100, -100, -100, 6, 3]


_ROLES = "{% for m in messages %}"
_ASKED = "{% endfor %}{% if add_generation_prompt %}"
TEMPLATES = {
    "chatml": (
        _ROLES
        + "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
        + _ASKED
        + "<|im_start|>assistant\n{% endif %}",
        ["<|im_start|>", "<|im_end|>"],
        "<|im_start|>user\ntwo and two<|im_end|>\n<|im_start|>assistant\n",
        "four<|im_end|>",
    ),
    "gemma": (
        "{{ bos_token }}"
        + _ROLES
        + "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<end_of_turn>\n"
        + _ASKED
        + "<start_of_turn>model\n{% endif %}",
        ["<start_of_turn>", "<end_of_turn>"],
        "<bos><start_of_turn>user\ntwo and two<end_of_turn>\n<start_of_turn>model\n",
        "four<end_of_turn>",
    ),
    "llama 3": (
        "{{ bos_token }}"
        + _ROLES
        + "<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n{{ m.content | trim }}<|eot_id|>"
        + _ASKED
        + "<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}",
        ["<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"],
        "<bos><|start_header_id|>user<|end_header_id|>\n\ntwo and two<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        "four<|eot_id|>",
    ),
    "thoughts that are opened and not written down": (
        _ROLES
        + "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
        + _ASKED
        + "<|im_start|>assistant\n<think>\n{% endif %}",
        ["<|im_start|>", "<|im_end|>", "<think>"],
        "<|im_start|>user\ntwo and two<|im_end|>\n<|im_start|>assistant\n<think>\n",
        "four<|im_end|>",
    ),
    "thoughts that are written down": (
        _ROLES
        + "<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}<think>\n</think>\n{% endif %}{{ m.content }}<|im_end|>\n"
        + _ASKED
        + "<|im_start|>assistant\n{% endif %}",
        ["<|im_start|>", "<|im_end|>", "<think>", "</think>"],
        "<|im_start|>user\ntwo and two<|im_end|>\n<|im_start|>assistant\n",
        "<think>\n</think>\nfour<|im_end|>",
    ),
    "the end of the sequence": (
        _ROLES + "[{{ m.role }}] {{ m.content }}{% if m.role == 'assistant' %}<eos>{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}[assistant] {% endif %}",
        [],
        "[user] two and two[assistant] ",
        "four<eos>",
    ),
    "no end": (
        _ROLES + "[{{ m.role }}] {{ m.content }}\n" + _ASKED + "[assistant] {% endif %}",
        [],
        "[user] two and two\n[assistant] ",
        "four<eos>",
    ),
}


def by_letters(template: str, marks: list[str]) -> PreTrainedTokenizerFast:
    """A tokenizer of single characters, line breaks too, and of marks that are one token each."""
    letters = {letter: place for place, letter in enumerate(sorted(set(map(chr, range(32, 127))) | {"\n"}))}
    vocabulary = {**letters, "<unk>": len(letters)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    made = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        model_max_length=256,
    )
    made.add_tokens([AddedToken(mark, special=True, normalized=False) for mark in marks])
    made.chat_template = template
    return made


@pytest.mark.parametrize("name", TEMPLATES)
def test_an_answer_is_scored_as_the_template_writes_it_with_its_own_end_of_turn_and_nothing_after(
    write, name: str
):
    template, marks, asked, scored = TEMPLATES[name]
    tokenizer = by_letters(template, marks)
    path = write("a.jsonl", rows(("two and two", "four")))
    data = load_instruct(settings(path, max_length=256), tokenizer)
    (example,) = data.train
    ids, labels = example["input_ids"], example["labels"]
    first = next(place for place, label in enumerate(labels) if label != -100)
    assert labels[first:] == ids[first:]
    assert "".join(tokenizer.convert_ids_to_tokens(ids[:first])) == asked
    assert "".join(tokenizer.convert_ids_to_tokens(ids[first:])) == scored
    assert any("ends an answer by no token of its own" in each for each in data.report.warnings) == (
        name == "no end"
    )


def test_a_template_that_trims_an_answer_is_followed(write):
    template, marks, _, scored = TEMPLATES["gemma"]
    tokenizer = by_letters(template, marks)
    data = load_instruct(
        settings(write("a.jsonl", rows(("two and two", " four\n"))), max_length=256), tokenizer
    )
    labels = [label for label in data.train[0]["labels"] if label != -100]
    assert "".join(tokenizer.convert_ids_to_tokens(labels)) == scored


@pytest.mark.parametrize("answer", ["end", "|>", "im", "two and two"])
def test_an_answer_that_stands_in_a_mark_or_in_the_prompt_is_scored_whole(write, answer: str):
    template, marks, *_ = TEMPLATES["chatml"]
    tokenizer = by_letters(template, marks)
    data = load_instruct(settings(write("a.jsonl", rows(("two and two", answer))), max_length=256), tokenizer)
    labels = [label for label in data.train[0]["labels"] if label != -100]
    assert "".join(tokenizer.convert_ids_to_tokens(labels)) == f"{answer}<|im_end|>"


def test_a_template_that_doubles_the_first_token_is_said(write, make_tokenizer):
    decoder = make_tokenizer("$A", eos_token="[SEP]", bos_token="[CLS]")
    decoder.chat_template = "[CLS] [CLS] {{ messages[0].content }}"
    data = load_instruct(settings(write("a.jsonl", rows(("good", "film")))), decoder)
    assert any("1 prompts begin with the token [CLS] twice" in each for each in data.report.warnings)


def test_what_is_too_long_is_cut_at_the_end_and_a_prompt_without_room_is_a_fault(write, decoder):
    path = write("a.jsonl", rows(("good film", "a bad book"), ("a b c d e", "good")))
    with pytest.raises(
        DataError,
        match=r"a\.jsonl:2: the prompt has 5 tokens, .* in 4 \(data\.max_length\); data\.too_long: cut_prompt",
    ):
        load_instruct(settings(path, max_length=4), decoder)
    with pytest.raises(
        DataError, match=r"left out: prompt too long \(2\)\. Give more rows, or correct these"
    ):
        load_instruct(settings(path, max_length=2, bad_rows="skip"), decoder)
    data = load_instruct(settings(path, max_length=4, bad_rows="skip"), decoder)
    assert [example["labels"] for example in data.train] == [[-100, -100, 8, 5]]
    assert data.report.truncated == 1
    assert data.report.skipped == {"prompt too long": 1}


def test_an_empty_completion_and_a_missing_column_are_told_by_row_and_name(write, decoder):
    path = write("a.jsonl", rows(("good", "film"), ("bad", " ")))
    with pytest.raises(DataError, match=r"a\.jsonl:2: completion is empty"):
        load_instruct(settings(path), decoder)
    with pytest.raises(DataError, match=r"data\.completion: .* has no column 'answer'"):
        load_instruct(settings(path, completion="answer"), decoder)


def test_validation_is_drawn_by_the_seed_or_read_from_its_own_file(write, decoder):
    path = write("a.jsonl", rows(*[(f"good {word}", "film") for word in ("a", "the", "bad", "very") * 5]))
    data = load_instruct(settings(path, validation=0.25), decoder)
    assert (len(data.train), len(data.validation)) == (15, 5)
    assert list(data.train) == list(load_instruct(settings(path, validation=0.25), decoder).train)
    own = load_instruct(settings(path, validation=write("b.jsonl", rows(("bad", "book")))), decoder)
    assert (len(own.train), len(own.validation), len(own.fingerprints)) == (20, 1, 2)


@pytest.mark.skipif(not (SHARED / "instructions.jsonl").is_file(), reason="the shared pairs are not here")
def test_real_pairs_are_read_whole(decoder):
    decoder.model_max_length = 4096
    data = load_instruct(settings(SHARED / "instructions.jsonl", max_length=4096, validation=0.2), decoder)
    assert len(data.train) + len(data.validation) == 175
    assert data.report.truncated == 0
