"""Prompts and completions to tokens, of which the completion's alone are scored."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from snugfit.data.instruct import InstructSettings, load_instruct
from snugfit.errors import DataError

SHARED = Path(os.environ.get("SNUGFIT_SHARED_DATA", Path(__file__).parents[4] / "shared" / "data"))
CHAT = "{% for m in messages %}the {{ m.content }} {% endfor %}{% if add_generation_prompt %}very{% endif %}"


@pytest.fixture
def decoder(make_tokenizer):
    """A tokenizer as decoders have it: no frame, [SEP] (3) ends a text."""
    return make_tokenizer("$A", eos_token="[SEP]")


def settings(path: Path, **more) -> InstructSettings:
    return InstructSettings(path, text=("prompt",), **{"validation": None, "max_length": 16, **more})


def rows(*pairs: tuple[str, str]) -> str:
    return "\n".join(json.dumps({"prompt": prompt, "completion": answer}) for prompt, answer in pairs)


def test_the_completion_and_its_end_are_scored_and_nothing_else(write, decoder):
    path = write("a.jsonl", rows(("good film", "a bad book"), ("the", "null")))
    data = load_instruct(settings(path), decoder)
    assert data.train[0]["input_ids"] == [4, 6, 8, 5, 7, 3]
    assert data.train[0]["labels"] == [-100, -100, 8, 5, 7, 3]
    assert data.collate(data.train)["labels"][1].tolist() == [-100, 11, 3, -100, -100, -100]
    assert data.report.lines()[0] == "2 rows to train on, 0 to validate on"


def test_the_frame_of_a_tokenizer_stands_around_the_whole(write, tokenizer):
    data = load_instruct(settings(write("a.jsonl", rows(("good", "film")))), tokenizer)
    assert data.train[0]["input_ids"] == [2, 4, 6, 3]
    assert data.train[0]["labels"] == [-100, -100, 6, 3]


def test_a_chat_template_is_used_and_not_scored(write, decoder):
    decoder.chat_template = CHAT
    data = load_instruct(settings(write("a.jsonl", rows(("good", "film")))), decoder)
    assert data.train[0]["input_ids"] == [9, 4, 13, 6, 3]
    assert data.train[0]["labels"] == [-100, -100, -100, 6, 3]


def test_a_template_that_doubles_the_first_token_is_said(write, make_tokenizer):
    decoder = make_tokenizer("$A", eos_token="[SEP]", bos_token="[CLS]")
    decoder.chat_template = "[CLS] [CLS] {{ messages[0].content }}"
    data = load_instruct(settings(write("a.jsonl", rows(("good", "film")))), decoder)
    assert any("1 prompts begin with the token [CLS] twice" in each for each in data.report.warnings)


def test_what_is_too_long_is_cut_at_the_end_and_a_prompt_without_room_is_a_fault(write, decoder):
    path = write("a.jsonl", rows(("good film", "a bad book"), ("a b c d e", "good")))
    with pytest.raises(DataError, match=r"a\.jsonl:2: the prompt has 5 tokens, .* in 4 \(data\.max_length\)"):
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
    assert data.train == load_instruct(settings(path, validation=0.25), decoder).train
    own = load_instruct(settings(path, validation=write("b.jsonl", rows(("bad", "book")))), decoder)
    assert (len(own.train), len(own.validation), len(own.fingerprints)) == (20, 1, 2)


@pytest.mark.skipif(not (SHARED / "instructions.jsonl").is_file(), reason="the shared pairs are not here")
def test_real_pairs_are_read_whole(decoder):
    decoder.model_max_length = 4096
    data = load_instruct(settings(SHARED / "instructions.jsonl", max_length=4096, validation=0.2), decoder)
    assert len(data.train) + len(data.validation) == 175
    assert data.report.truncated == 0
