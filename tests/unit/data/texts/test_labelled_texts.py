"""Rows to examples: labels, faults, tokens and padding."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest
import torch
from tokenizers import normalizers

from snugfit.data.texts.labelled_texts import TextSettings, load_text, load_text_rows
from snugfit.data.texts.tokens import check_max_length, encode, padding_for, special_frame
from snugfit.errors import DataError, SettingError

ROWS = "".join(f"{'good' if i % 2 else 'bad'} film,{'yes' if i % 2 else 'no'}\n" for i in range(10))
SHARED = Path(os.environ.get("SNUGFIT_SHARED_DATA", Path(__file__).parents[4] / "shared" / "data"))


def settings_for(path, **more) -> TextSettings:
    return TextSettings(**{"train": path, "text": ("text",), "label": "label", "max_length": 8, **more})


def test_examples_hold_framed_tokens_and_the_label_of_the_sorted_name(write, tokenizer):
    data = load_text(settings_for(write("a.csv", "text,label\n" + ROWS), validation=None), tokenizer)
    assert data.labels == ("no", "yes")
    assert data.train[0]["input_ids"] == [2, 5, 6, 3]
    assert data.train[0]["attention_mask"] == [1, 1, 1, 1]
    assert [example["labels"] for example in data.train] == [0, 1] * 5
    assert len(data.validation) == 0


def test_several_columns_are_joined_by_a_line_break(write, tokenizer):
    path = write("a.csv", "title,text,label\ngood,film,a\nbad,,b\n")
    data = load_text(settings_for(path, text=("title", "text"), validation=None), tokenizer)
    assert [example["input_ids"] for example in data.train] == [[2, 4, 6, 3], [2, 5, 3]]


def test_a_fraction_is_set_aside_with_the_same_share_of_each_label(write, tokenizer):
    data = load_text(settings_for(write("a.csv", "text,label\n" + ROWS), validation=0.2), tokenizer)
    assert len(data.train) == 8
    assert sorted(example["labels"] for example in data.validation) == [0, 1]
    assert data.report.train == 8
    assert data.report.validation == 2
    assert data.report.labels == {"no": 4, "yes": 4}


def test_validation_comes_from_its_own_file_with_both_fingerprints(write, tokenizer):
    train, validation = write("a.csv", "text,label\n" + ROWS), write("b.csv", "text,label\ngood book,yes\n")
    data = load_text(settings_for(train, validation=validation), tokenizer)
    assert len(data.train) == 10
    assert data.validation[0]["input_ids"] == [2, 4, 7, 3]
    assert set(data.fingerprints) == {str(train), str(validation)}


def test_all_faults_of_both_files_are_in_one_error(write, tokenizer):
    train = write("a.csv", "text,label\n" + ROWS + ",yes\ngood,\nonly\n")
    validation = write("b.csv", "text,label\ngood,yess\n")
    with pytest.raises(DataError) as caught:
        load_text(settings_for(train, validation=validation), tokenizer)
    message = str(caught.value)
    assert message.startswith("data: 4 rows cannot be used: ")
    assert "a.csv:12: text is empty" in message
    assert "a.csv:13: label is empty" in message
    assert "a.csv:14: 1 field, the header has 2" in message
    assert "b.csv:2: the label 'yess' was not trained. Did you mean 'yes'?" in message
    assert "data.bad_rows: skip" in message


def test_skipped_rows_are_left_out_and_counted_by_reason(write, tokenizer):
    train = write("a.csv", b"text,label\n" + ROWS.encode() + b",yes\ngood,\nonly\nca\xe9,yes\n")
    data = load_text(settings_for(train, validation=None, bad_rows="skip"), tokenizer)
    assert len(data.train) == 10
    assert dict(data.report.skipped) == {
        "empty text": 1,
        "missing label": 1,
        "ragged row": 1,
        "not UTF-8": 1,
    }
    assert "4 left out" in data.report.lines()[0]


def test_na_and_null_are_texts_and_labels(write, tokenizer):
    data = load_text(
        settings_for(write("a.csv", "text,label\nNA,null\nnull,NA\n"), validation=None), tokenizer
    )
    assert data.labels == ("NA", "null")
    assert [example["input_ids"] for example in data.train] == [[2, 10, 3], [2, 11, 3]]


def test_labels_of_mixed_types_are_faults_of_the_rarer_type(write, tokenizer):
    rows = [{"text": "good", "label": 1}, {"text": "bad", "label": 0}, {"text": "good", "label": "1"}]
    path = write("a.jsonl", "\n".join(json.dumps(row) for row in rows))
    with pytest.raises(DataError, match=r"a\.jsonl:3: the label '1' is text, most labels are a whole number"):
        load_text(settings_for(path, validation=None), tokenizer)
    data = load_text(settings_for(path, validation=None, bad_rows="skip"), tokenizer)
    assert data.labels == ("0", "1")
    assert dict(data.report.skipped) == {"mixed label types": 1}


def test_whole_number_labels_are_ordered_by_value(write, tokenizer):
    rows = "\n".join(json.dumps({"text": "good", "label": label}) for label in (10, 9, 2))
    assert load_text(settings_for(write("a.jsonl", rows), validation=None), tokenizer).labels == (
        "2",
        "9",
        "10",
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("text,label\ngood,a\nbad,a\n", r"one class only in column 'label' \(a\)"),
        (
            "text,category\ngood,a\n",
            r"data\.label: .* has no column 'label'. Its columns are 'text', 'category'",
        ),
        ("txt,label\ngood,a\n", r"data\.text: .* has no column 'text'. Did you mean 'txt'\?"),
        ("text,label\n,a\n,b\n", "no usable row"),
        ("text,label\ngood\nbad\n", "no usable row"),
    ],
)
def test_a_file_without_two_usable_classes_is_refused(write, tokenizer, content, message):
    with pytest.raises(DataError, match=message):
        load_text(settings_for(write("a.csv", content), bad_rows="skip"), tokenizer)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"text": ()}, r"data\.text: no column"),
        ({"validation": 1.5}, r"data\.validation: 1.5"),
        ({"validation": 0}, r"data\.validation: 0 "),
        ({"bad_rows": "drop"}, r"data\.bad_rows: 'drop'"),
    ],
)
def test_impossible_settings_are_refused_before_anything_is_read(more, message):
    with pytest.raises(SettingError, match=message):
        settings_for("no such file.csv", **more)


def test_a_text_that_the_tokenizer_empties_is_a_fault(write, make_tokenizer):
    bare = make_tokenizer("$A", eos_token="[SEP]")
    bare.backend_tokenizer.normalizer = normalizers.Replace("\u200b", "")
    path = write("a.csv", "text,label\ngood,a\nbad,b\n\u200b,a\n")
    with pytest.raises(DataError, match=r"a\.csv:4: the tokenizer leaves nothing of '\\u200b'"):
        load_text(settings_for(path, validation=None), bare)
    data = load_text(settings_for(path, validation=None, bad_rows="skip"), bare)
    assert [example["input_ids"] for example in data.train] == [[4], [5]]
    assert [example["labels"] for example in data.train] == [0, 1]


def test_long_texts_are_cut_with_their_special_tokens_and_counted(tokenizer):
    texts = ["good", "a good film", "a very good and bad film", "good " * 50]
    encoded = encode(texts, tokenizer, 5)
    assert encoded.lengths == [3, 5, 8, 52]
    assert [len(example["input_ids"]) for example in encoded.examples] == [3, 5, 5, 5]
    assert all(example["input_ids"][-1] == 3 for example in encoded.examples)


def test_the_report_counts_whole_texts(write, tokenizer):
    path = write("a.csv", "text,label\ngood,a\na very good film,b\nbad,b\n")
    report = load_text(settings_for(path, validation=None, max_length=5), tokenizer).report
    assert (report.truncated, report.tokens_max, report.tokens_median) == (1, 6, 3.0)
    assert json.dumps(report.as_dict())


def test_example_rows_are_the_text_columns_of_rows_not_trained_on(write, tokenizer):
    path = write("a.csv", "id,text,label\n" + "".join(f"{i},film {i},{i % 2}\n" for i in range(100)))
    columns = ("text",)
    data = load_text(settings_for(path, validation=0.1, text=columns), tokenizer)
    assert len(data.example_rows) == 10
    whole = load_text_rows(path, tokenizer, text=columns, max_length=8)
    rows = [row["text"] for row in whole.rows]
    places = [rows.index(row["text"]) for row in data.example_rows]
    assert all(set(row) == {"text"} for row in data.example_rows)
    assert [place % 2 for place in places] == [example["labels"] for example in data.validation]
    assert len(load_text(settings_for(path, validation=None), tokenizer).example_rows) == 32
    own = write("b.csv", "text,label\ngood,1\n,0\nbook,0\n")
    data = load_text(settings_for(path, validation=own, bad_rows="skip"), tokenizer)
    assert data.example_rows == [{"text": "good"}, {"text": "book"}]


def test_collate_pads_on_the_right_to_the_longest(write, tokenizer):
    path = write("a.csv", "text,label\ngood,a\na very good film,b\n")
    data = load_text(settings_for(path, validation=None), tokenizer)
    batch = data.collate(data.train)
    assert batch["input_ids"].tolist() == [[2, 4, 3, 0, 0, 0], [2, 8, 13, 4, 6, 3]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 0, 0, 0], [1] * 6]
    assert batch["labels"].tolist() == [0, 1]
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}


def test_collate_can_be_sent_to_a_worker(tokenizer):
    collate = pickle.loads(pickle.dumps(padding_for(tokenizer)))
    batch = collate([{"input_ids": [4], "labels": [4]}, {"input_ids": [4, 5], "labels": [4, 5]}])
    assert batch["labels"].tolist() == [[4, -100], [4, 5]]
    assert collate([{"labels": 0.5}])["labels"].dtype == torch.float32


def test_evaluation_uses_the_models_labels_and_refuses_others(write, tokenizer):
    path = write("a.csv", "text,label\ngood,yes\nbad,maybe\n")
    asked = {"text": ["text"], "label": "label", "labels": ("no", "yes"), "max_length": 8}
    with pytest.raises(DataError, match=r"a\.csv:3: the label 'maybe' was not trained"):
        load_text_rows(path, tokenizer, **asked)
    rows = load_text_rows(path, tokenizer, **asked, bad_rows="skip")
    assert [example["labels"] for example in rows.examples] == [1]
    assert dict(rows.report.skipped) == {"unknown label": 1}
    assert rows.lines == [2]


def test_evaluation_may_hold_one_class(write, tokenizer):
    path = write("a.csv", "text,label\ngood,yes\n")
    rows = load_text_rows(path, tokenizer, text=["text"], label="label", labels=("no", "yes"), max_length=8)
    assert rows.report.labels == {"no": 0, "yes": 1}


def test_rows_to_predict_keep_order_columns_and_need_no_label(write, tokenizer):
    path = write("a.csv", "id,text,label\n7,good,\n3,bad,whatever\n")
    rows = load_text_rows(path, tokenizer, text=["text"], max_length=8)
    assert [row["id"] for row in rows.rows] == ["7", "3"]
    assert rows.columns == ("id", "text", "label")
    assert [sorted(example) for example in rows.examples] == [["attention_mask", "input_ids"]] * 2


def test_special_tokens_of_a_tokenizer_are_found(tokenizer, make_tokenizer):
    frame = special_frame(tokenizer)
    assert (frame.prefix, frame.suffix, len(frame)) == ((2,), (3,), 2)
    assert len(special_frame(make_tokenizer("$A"))) == 0


@pytest.mark.parametrize("template", ["[CLS] [CLS] $A [SEP]", "[CLS] $A [SEP] [SEP]"])
def test_a_tokenizer_that_doubles_a_special_token_is_refused(make_tokenizer, template):
    with pytest.raises(DataError, match=r"twice (before|after) every text"):
        special_frame(make_tokenizer(template))


def test_special_tokens_inside_a_text_are_fine_and_at_its_ends_are_told(write, tokenizer):
    fine = write("a.csv", "text,label\ngood [SEP] film,a\nbad [CLS] film,b\n")
    assert load_text(settings_for(fine, validation=None), tokenizer).report.warnings == ()
    doubled = write("b.csv", "text,label\n[CLS] good,a\nbad [SEP],b\nbad,b\n")
    warnings = load_text(settings_for(doubled, validation=None), tokenizer).report.warnings
    assert len(warnings) == 1
    assert warnings[0].startswith("2 of 3 texts begin or end with a special token of their own")


def test_what_looks_wrong_in_the_data_is_told(write, tokenizer):
    train = write("a.csv", "text,label\nxyz,Yes\ngood,yes \nbad,yes \n")
    warnings = load_text(settings_for(train, validation=train), tokenizer).report.warnings
    assert len(warnings) == 3
    assert "tokens are unknown to the tokenizer ([UNK])" in warnings[0]
    assert "'Yes', 'yes ' differ only in spaces, capitals or the form of Unicode" in warnings[1]
    assert warnings[2].startswith("3 of 3 validation texts are also trained on (")


def test_a_column_of_identifiers_as_labels_is_told(write, tokenizer):
    path = write("a.csv", "text,label\n" + "".join(f"good,{row}\n" for row in range(30)))
    warnings = load_text(settings_for(path, validation=None), tokenizer).report.warnings
    assert warnings == ("30 classes for 30 rows: does column 'label' hold the labels?",)


def test_a_length_without_room_or_beyond_the_model_is_refused(tokenizer):
    frame = special_frame(tokenizer)
    check_max_length(3, tokenizer, len(frame))
    check_max_length(64, tokenizer, len(frame))
    with pytest.raises(SettingError, match=r"data\.max_length: 2 leaves no room"):
        check_max_length(2, tokenizer, len(frame))
    with pytest.raises(SettingError, match=r"data\.max_length: 65 is more than the 64 tokens"):
        check_max_length(65, tokenizer, len(frame))


@pytest.mark.skipif(
    not (SHARED / "agnews_train.csv").is_file(), reason="the shared AG News files are not here"
)
def test_ag_news_is_read_whole(tokenizer):
    settings = TextSettings(SHARED / "agnews_train.csv", ("title", "text"), label="label", max_length=64)
    data = load_text(settings, tokenizer)
    assert data.labels == ("Business", "Sci/Tech", "Sports", "World")
    assert (len(data.train), len(data.validation)) == (5400, 600)
    assert data.report.skipped == {}
    rows = load_text_rows(
        SHARED / "agnews_test.csv",
        tokenizer,
        text=("title", "text"),
        label="label",
        labels=data.labels,
        max_length=64,
    )
    assert len(rows.examples) == 1600
