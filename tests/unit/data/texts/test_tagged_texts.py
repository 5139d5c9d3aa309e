"""Rows with tags or spans to windows: what a word is, which window has it, and rows that cannot be used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from snugfit.data.texts.tagged_rows import tagged_text
from snugfit.data.texts.tagged_texts import Reader, TagSettings, load_tagged
from snugfit.data.texts.tags import Span
from snugfit.data.texts.token_windows import TokenizedText, Word, labelled, windows_of
from snugfit.data.texts.tokens import IGNORED_LABEL, Frame
from snugfit.errors import DataError, SettingError
from snugfit.models.tokenizer import load_tokenizer
from tests.unit.tasks.tiny_encoder import write_encoder


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load_tokenizer(str(write_encoder(tmp_path_factory.mktemp("encoder"))))


def write(rows: list[dict[str, Any]], name: str = "rows.jsonl") -> str:
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return name


def settings(rows: list[dict[str, Any]], **others: Any) -> TagSettings:
    return TagSettings(**{"train": write(rows), "validation": None, "max_length": 16, **others})


def test_the_first_piece_of_a_word_alone_is_scored(tokenizer: Any) -> None:
    rows = [{"text": ["Anns", "met", "Bob"], "label": ["B-p", "O", "B-p"]}]
    data = load_tagged(settings(rows), tokenizer)
    (example,) = data.train
    assert tokenizer.convert_ids_to_tokens(example["input_ids"]) == [
        "[CLS]",
        "ann",
        "##s",
        "met",
        "bob",
        "[SEP]",
    ]
    assert data.tags == ("O", "B-p", "I-p")
    assert example["labels"] == [-100, 1, -100, 0, 1, -100]


def test_words_with_tags_and_the_same_in_characters_are_the_same_examples(tokenizer: Any) -> None:
    words = [{"text": ["Ann", "met", "New", "York", "."], "label": ["B-p", "O", "B-l", "I-l", "O"]}]
    text = " Ann met  New York."
    spans = [[1, 4, "p"], {"start": 10, "end": 18, "label": "l"}]
    plain = [{"text": "Ann met New York .", "label": "B-p O B-l I-l O"}]
    of_words, of_spans, of_plain = (
        load_tagged(settings(rows), tokenizer).train
        for rows in (words, [{"text": text, "label": spans}], plain)
    )
    assert list(of_words) == list(of_spans) == list(of_plain)


def test_each_word_is_scored_once_and_where_it_has_the_most_context() -> None:
    count, room = 23, 8
    text = TokenizedText(list(range(count)), [Word(at, at + 1, at, at) for at in range(count)])
    windows = windows_of(text, room + 2, Frame((100,), (101,)), token_types=False)
    owned = [word for window in windows for word in window.places]
    assert sorted(owned) == list(range(count))
    starts = [window.example["input_ids"][1] for window in windows]
    assert starts == [0, 6, 12, 15]
    for window, start in zip(windows, starts, strict=True):
        ids = window.example["input_ids"]
        assert len(ids) == room + 2 and (ids[0], ids[-1]) == (100, 101)
        for word, place in window.places.items():
            assert ids[place] == word

            def context(at: int, word: int = word) -> float:
                inside = at <= word < at + room
                before = word - at if at else count
                after = at + room - 1 - word if at + room < count else count
                return min(before, after) if inside else -1

            assert context(start) == max(map(context, starts))
    classes = list(range(count))
    labels = [label for window in windows for label in labelled(window, classes)["labels"]]
    assert sorted(label for label in labels if label != IGNORED_LABEL) == classes


def test_a_word_longer_than_a_window_is_scored_too() -> None:
    text = TokenizedText(list(range(9)), [Word(0, 1, 0, 7), Word(1, 2, 8, 8)])
    windows = windows_of(text, 4, Frame((), ()), token_types=True)
    assert sorted(word for window in windows for word in window.places) == [0, 1]
    assert windows[0].example["token_type_ids"] == [0] * 4


def test_windows_of_a_text_are_on_one_side_of_a_split_and_say_their_row(tokenizer: Any) -> None:
    rows = [{"text": ["ann", "met"] * 20, "label": ["B-p", "O"] * 20} for _ in range(8)]
    data = load_tagged(settings(rows, validation=0.25), tokenizer)
    assert len(set(data.train.rows)) == 6 and len(set(data.validation.rows)) == 2
    assert not set(data.train.rows) & set(data.validation.rows)
    assert (data.report.train, data.report.validation) == (6, 2)
    assert data.report.windowed == 8 and data.report.windows == len(data.train) + len(data.validation)
    assert "8 texts read in 32 windows of 16" in "\n".join(data.report.lines())


def test_signs_are_words_of_their_own_in_texts(tokenizer: Any) -> None:
    reader = Reader(tokenizer, 16)
    (row,) = reader.rows([tagged_text({"text": "Anns (New York)."}, "text", None)[1]])
    assert [row.text[word.start : word.end] for word in row.words] == ["Anns", "(", "New", "York", ")", "."]


def test_a_span_within_a_word_is_widened_and_said(tokenizer: Any) -> None:
    data = load_tagged(settings([{"text": "Anns met Bob", "label": [[0, 3, "p"]]}]), tokenizer)
    assert data.train[0]["labels"] == [-100, 1, -100, 0, 0, -100]
    assert "1 spans of" in data.report.warnings[0] and "within a word" in data.report.warnings[0]


def test_a_word_of_which_the_tokenizer_leaves_nothing_is_said_and_not_scored(tokenizer: Any) -> None:
    data = load_tagged(
        settings([{"text": ["ann", "\u200d", "met"], "label": ["B-p", "B-p", "O"]}]), tokenizer
    )
    assert data.train[0]["labels"] == [-100, 1, 0, -100]
    assert "1 words of" in data.report.warnings[0]


GOOD = {"text": ["ann", "met"], "label": ["B-p", "O"]}


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"text": ["ann"], "label": ["B-p", "O"]}, "words and tags differ"),
        ({"text": [], "label": []}, "empty text"),
        ({"text": ["ann", " "], "label": ["O", "O"]}, "empty word"),
        ({"text": ["ann", 1], "label": ["O", "O"]}, "not text"),
        ({"text": ["ann"], "label": [float("nan")]}, "unusable label"),
        ({"text": ["ann"], "label": [None]}, "unusable label"),
        ({"text": ["ann"], "label": None}, "missing label"),
        ({"text": ["ann"]}, "missing label"),
        ({"text": ["\u200d"], "label": ["O"]}, "empty text"),
        ({"text": ["\ud83d"], "label": ["O"]}, "undecodable bytes"),
    ],
)
def test_a_row_of_words_that_cannot_be_used_is_a_fault_with_its_line(
    tokenizer: Any, row: dict[str, Any], reason: str
) -> None:
    rows = [GOOD, row]
    with pytest.raises(DataError, match=rf"{reason} \(1\)[\s\S]*rows.jsonl:2"):
        load_tagged(settings(rows), tokenizer)
    assert load_tagged(settings(rows, bad_rows="skip"), tokenizer).report.skipped == {reason: 1}


@pytest.mark.parametrize(
    ("text", "spans", "reason"),
    [
        ("ann met", [[0, 3, "p"], [2, 5, "q"]], "overlapping spans"),
        ("anns met", [[0, 3, "p"], [3, 4, "q"]], "overlapping spans"),
        ("ann", [[0, 4, "p"]], "span outside the text"),
        ("ann", [[-1, 2, "p"]], "span outside the text"),
        ("ann", [[2, 2, "p"]], "span outside the text"),
        ("ann met", [[3, 4, "p"]], "empty span"),
        ("ann", [["0", 3, "p"]], "unusable label"),
        ("ann", [[0, 3, ""]], "unusable label"),
        ("ann", ["p"], "unusable label"),
        ("ann", 3, "unusable label"),
        ("  ", [], "empty text"),
    ],
)
def test_a_row_of_spans_that_cannot_be_used_is_a_fault_with_its_line(
    tokenizer: Any, text: str, spans: Any, reason: str
) -> None:
    rows = [{"text": "ann met", "label": [[0, 3, "p"]]}, {"text": text, "label": spans}]
    with pytest.raises(DataError, match=rf"{reason} \(1\)[\s\S]*rows.jsonl:2"):
        load_tagged(settings(rows), tokenizer)
    assert load_tagged(settings(rows, bad_rows="skip"), tokenizer).report.skipped == {reason: 1}


def test_a_tag_that_no_row_to_train_on_has_is_a_fault_of_its_validation_row(tokenizer: Any) -> None:
    other = write([GOOD, {"text": ["bob"], "label": ["B-q"]}], "other.jsonl")
    with pytest.raises(DataError, match=r"other.jsonl:2: the tag 'B-q' was not trained"):
        load_tagged(settings([GOOD], validation=other), tokenizer)


def test_rows_of_two_forms_and_tags_of_one_kind_alone_are_refused(tokenizer: Any) -> None:
    with pytest.raises(DataError, match="tags of words in some rows and spans of characters in others"):
        load_tagged(settings([GOOD, {"text": "ann", "label": [[0, 3, "p"]]}]), tokenizer)
    with pytest.raises(DataError, match="one class only"):
        load_tagged(settings([{"text": ["ann"], "label": ["O"]}]), tokenizer)
    with pytest.raises(SettingError, match=r"data\.text: got 2 columns"):
        settings([GOOD], text=("a", "b"))


def test_spans_become_tags_of_the_scheme_that_is_asked_for(tokenizer: Any) -> None:
    data = load_tagged(
        settings([{"text": "ann met new york", "label": [[8, 16, "l"]]}], scheme="bilou"), tokenizer
    )
    assert data.tags == ("O", "B-l", "I-l", "L-l", "U-l")
    assert data.train[0]["labels"] == [-100, 0, 0, 1, 3, -100]


def test_a_span_has_the_names_that_tools_of_annotation_give_it() -> None:
    values = [
        {"start": 0, "end": 3, "labels": ["p"]},
        {"start_offset": 4, "end_offset": 7, "entity_group": "q"},
    ]
    _, text = tagged_text({"text": "ann met", "label": values}, "text", "label")
    assert text.spans == (Span(0, 3, "p"), Span(4, 7, "q"))


def test_words_of_a_csv_are_a_list_in_json_in_training_and_prediction() -> None:
    from snugfit.data.texts.tagged_rows import tagged_text

    row = {"words": '["Ada", "L"]', "tags": '["B-p", "O"]'}
    assert tagged_text(row, "words", "tags") == tagged_text(
        {"words": ["Ada", "L"], "tags": ["B-p", "O"]}, "words", "tags"
    )
    assert tagged_text(row, "words", None, "words")[1].words == ((0, 3), (4, 5))
    assert tagged_text({"words": '["quoted text", he said'}, "words", None)[0] == "spans"
