"""Texts to blocks of tokens for a causal language model."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snugfit.data.texts.causal import CausalSettings, cut_text, load_causal
from snugfit.data.texts.plain_documents import PlainDocuments
from snugfit.data.texts.streamed_texts import StreamSettings, stream_causal
from snugfit.errors import DataError

SHARED = Path(os.environ.get("SNUGFIT_SHARED_DATA", Path(__file__).parents[4] / "shared" / "data"))


@pytest.fixture(scope="module")
def decoder(make_tokenizer):
    """A tokenizer as decoders have it: no frame, [SEP] (3) ends a text."""
    return make_tokenizer("$A", eos_token="[SEP]")


def tokens(examples) -> list[int]:
    return [token for example in examples for token in example["input_ids"]]


def test_blocks_are_the_stream_of_tokens_cut_without_overlap(write, decoder):
    path = write("a.txt", "a good film\nand a bad book\n")
    data = load_causal(CausalSettings(path, validation=None, max_length=3), decoder)
    assert [example["input_ids"] for example in data.train] == [[8, 4, 6], [12, 8, 5], [7, 3]]
    assert all(example["labels"] == example["input_ids"] for example in data.train)
    assert data.report.tokens_total == 8
    assert data.report.lines()[0] == "3 blocks to train on, 0 to validate on"


def test_a_last_block_of_one_token_predicts_nothing_and_is_left_out(write, decoder):
    path = write("a.txt", "a good film and a bad")
    data = load_causal(CausalSettings(path, validation=None, max_length=3), decoder)
    assert [len(example["input_ids"]) for example in data.train] == [3, 3]


def test_documents_that_stay_apart_begin_an_example_each(write, decoder):
    texts = ["a good film and a bad book", "good", "bad film"]
    path = write("a.jsonl", "".join(f"{json.dumps({'text': text})}\n" for text in texts))
    data = load_causal(CausalSettings(path, validation=None, max_length=5, documents="apart"), decoder)
    assert [example["input_ids"] for example in data.train] == [
        [8, 4, 6, 12, 8],
        [5, 7, 3],
        [4, 3],
        [5, 6, 3],
    ]
    assert list(data.train.lines) == [1, 1, 2, 3]
    assert data.report.lines() == [
        "4 examples to train on, 0 to validate on",
        "tokens: median 3, longest 8; 1 texts read in 2 windows of 5",
    ]


@pytest.mark.parametrize(
    ("line", "separator"),
    [("[SEP]", None), ("<|endoftext|>", None), ("  ---", "---"), ("", "")],
    ids=["the tokenizer's end", "the end of published texts", "named", "empty"],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_documents_of_a_plain_text_are_those_of_rows(write, decoder, line, separator, streamed):
    texts = ["a good film\nand a bad book", "good\n", "bad film\n"]
    rows = write("a.jsonl", "".join(f"{json.dumps({'text': text})}\n" for text in texts))
    plain = write("a.txt", f"{line}\n" + f"\n{line}\n \n{line}\n".join(texts) + f"{line}\n")
    for documents in ("joined", "apart"):
        own = {"validation": None, "max_length": 5, "documents": documents, "separator": separator}
        if streamed:
            data, expected = (
                stream_causal(CausalSettings(str(path), **own), StreamSettings(64, 2, 2), decoder)
                for path in (plain, rows)
            )
        else:
            data, expected = (load_causal(CausalSettings(path, **own), decoder) for path in (plain, rows))
            assert data.report.form == f"3 documents in {plain}" and not expected.report.form
        assert [each["input_ids"] for each in map(data.train.__getitem__, range(3))] == [
            each["input_ids"] for each in map(expected.train.__getitem__, range(3))
        ]


def test_documents_of_a_plain_text_are_held_out_whole_and_told_by_their_lines(write, decoder):
    path = write("a.txt", "a good film\n[SEP]\n" * 6 + "a bad book")
    own = CausalSettings(path, validation=0.3, max_length=5, documents="apart")
    data = load_causal(own, decoder)
    assert (len(data.train), len(data.validation)) == (5, 2)
    assert sorted([*data.train.lines, *data.validation.lines]) == [1, 3, 5, 7, 9, 11, 13]
    whole = load_causal(CausalSettings(path, validation=None, max_length=5, separator="***"), decoder)
    assert whole.report.form == "" and whole.report.tokens_total == 28


@given(st.text(alphabet="ab \n-", max_size=60), st.integers(1, 20))
def test_pieces_of_documents_are_those_of_their_texts(text, size):
    rows = [{"text": line} for line in text.splitlines(keepends=True)]
    documents = PlainDocuments(rows, frozenset({"-"}))
    for place, whole in enumerate(documents):
        assert list(documents.pieces(place, size)) == list(cut_text(whole, size))
    words = [word for part in re.split(r"(?m)^ *- *$", text) if (word := part.split())]
    assert [each.split() for each in documents] == words or not words


def test_a_last_token_that_is_left_out_is_no_window_of_its_document(write, decoder):
    texts = ["a good film and a", "a good film and a bad book good film bad"]
    path = write("a.jsonl", "".join(f"{json.dumps({'text': text})}\n" for text in texts))
    data = load_causal(CausalSettings(path, validation=None, max_length=5, documents="apart"), decoder)
    assert [len(example["input_ids"]) for example in data.train] == [5, 5, 5]
    assert (data.report.windowed, data.report.windows) == (1, 2)


def test_padding_of_labels_is_ignored(write, decoder):
    path = write("a.txt", "a good film and a bad book")
    data = load_causal(CausalSettings(path, validation=None, max_length=5), decoder)
    batch = data.collate(data.train)
    assert batch["input_ids"].tolist() == [[8, 4, 6, 12, 8], [5, 7, 3, 0, 0]]
    assert batch["labels"].tolist() == [[8, 4, 6, 12, 8], [5, 7, 3, -100, -100]]


def test_the_end_of_a_text_file_is_set_aside(write, decoder):
    words = [["good", "bad", "film", "book"][place % 4] for place in range(399)]
    path = write("a.txt", " ".join(words))
    whole = load_causal(CausalSettings(path, validation=None, max_length=10), decoder)
    parts = load_causal(CausalSettings(path, validation=0.25, max_length=10), decoder)
    assert (len(parts.train), len(parts.validation)) == (30, 10)
    assert tokens(parts.train) + tokens(parts.validation) == tokens(whole.train)


def test_rows_are_texts_that_each_end_and_are_split_whole(write, decoder):
    rows = [{"prompt": "good", "answer": "film"} for _ in range(8)] + [
        {"prompt": "bad", "answer": "book"}
    ] * 2
    path = write("a.jsonl", "\n".join(map(json.dumps, rows)))
    data = load_causal(CausalSettings(path, text=("prompt", "answer"), validation=0.2, max_length=3), decoder)
    assert sorted(tuple(example["input_ids"]) for example in [*data.train, *data.validation]) == (
        [(4, 6, 3)] * 8 + [(5, 7, 3)] * 2
    )
    assert (len(data.train), len(data.validation)) == (8, 2)


def test_a_tokenizers_own_frame_is_kept_around_every_text(write, tokenizer):
    path = write("a.jsonl", '{"text": "good"}\n{"text": "bad"}\n')
    data = load_causal(CausalSettings(path, validation=None, max_length=6), tokenizer)
    assert data.train[0]["input_ids"] == [2, 4, 3, 2, 5, 3]


def test_validation_comes_from_its_own_file(write, decoder):
    train, validation = write("a.txt", "good film " * 9), write("b.txt", "bad book " * 3)
    data = load_causal(CausalSettings(train, validation=validation, max_length=4), decoder)
    assert set(tokens(data.validation)) == {5, 7, 3}
    assert set(data.fingerprints) == {str(train), str(validation)}


def test_lines_that_cannot_be_read_follow_the_policy(write, decoder):
    path = write("a.txt", b"good film\nca\xe9\nbad book\n")
    with pytest.raises(
        DataError,
        match=r"(?s)a\.txt:2: byte 0xe9 on line 2 is not UTF-8.*Save it as UTF-8, for example: iconv",
    ):
        load_causal(CausalSettings(path, validation=None, max_length=4), decoder)
    data = load_causal(CausalSettings(path, validation=None, max_length=8, bad_rows="skip"), decoder)
    assert tokens(data.train) == [4, 6, 5, 7, 3]
    assert dict(data.report.skipped) == {"not UTF-8": 1}


def test_too_little_text_is_refused_with_the_counts(write, decoder):
    with pytest.raises(DataError, match="too short: 0 blocks of 16 tokens to train on, 1 to validate on"):
        load_causal(CausalSettings(write("a.txt", "good film"), max_length=16), decoder)
    with pytest.raises(DataError, match="has no column 'text'"):
        load_causal(CausalSettings(write("a.csv", "body,x\ngood,film\n"), max_length=8), decoder)


@settings(max_examples=100, deadline=None)
@given(text=st.text(st.sampled_from("ab\n"), max_size=60), size=st.integers(1, 20))
def test_pieces_of_a_text_are_the_text_and_end_at_line_breaks(text, size):
    pieces = list(cut_text(text, size))
    assert "".join(pieces) == text
    assert all(len(piece) >= size and piece.endswith("\n") for piece in pieces[:-1])


@pytest.mark.skipif(not (SHARED / "tinyshakespeare.txt").is_file(), reason="the shared texts are not here")
def test_a_real_text_comes_back_from_its_blocks(decoder):
    path = SHARED / "tinyshakespeare.txt"
    data = load_causal(CausalSettings(path, validation=0.1, max_length=64), decoder)
    words = path.read_text().split()
    assert data.report.tokens_total == len(words) + 1
    assert len(tokens(data.train) + tokens(data.validation)) == len(words) + 1
