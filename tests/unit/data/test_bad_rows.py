from __future__ import annotations

import pytest

from snugfit.data.bad_rows import BadRow, Fault, label_of, settle, shorten, text_of
from snugfit.data.sources import Table, check_columns
from snugfit.errors import DataError, SettingError


def table(columns: tuple[str, ...], rows: list[dict] | None = None) -> Table:
    rows = rows or []
    return Table("a.csv", columns, rows, list(range(2, len(rows) + 2)), "")


FAULTS = [Fault("a.csv", line, "empty text", f"text {line}") for line in range(2, 9)]
FAULTS.append(Fault("b.csv", 3, "ragged row", "3 fields"))


def test_failing_tells_all_faults_in_one_message():
    with pytest.raises(DataError) as caught:
        settle(FAULTS, "fail")
    message = str(caught.value)
    assert message.startswith(
        "data: 8 rows cannot be used: empty text (7), ragged row (1).\n  a.csv:2: text 2\n"
    )
    assert (
        all(f"  a.csv:{line}: text {line}\n" in message for line in range(2, 7)) and "… and 3 more" in message
    )
    assert message.endswith(
        "data.bad_rows: skip in a recipe, data.bad_rows=skip behind train, --bad-rows skip behind other commands."
    )


def test_skipping_counts_by_reason():
    assert settle(FAULTS, "skip") == {"empty text": 7, "ragged row": 1}
    assert settle([], "fail") == {}


def test_an_unknown_policy_is_refused():
    with pytest.raises(SettingError, match=r"data\.bad_rows: 'skp' is not a policy\. Did you mean 'skip'\?"):
        settle([], "skp")


@pytest.mark.parametrize("word", ["NA", "null", "None", "nan", "0", " x "])
def test_a_word_that_looks_like_nothing_is_text(word):
    assert text_of({"t": word}, ["t"]) == word


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"t": ""}, "empty text"),
        ({"t": " \t\n"}, "empty text"),
        ({"t": None}, "empty text"),
        ({}, "missing column"),
        ({"t": 3}, "not text"),
        ({"t": ["a"]}, "not text"),
        ({"t": "half \ud83d"}, "undecodable bytes"),
    ],
)
def test_a_row_without_usable_text_is_a_fault(row, reason):
    with pytest.raises(BadRow) as caught:
        text_of(row, ["t"])
    assert caught.value.reason == reason


def test_text_columns_are_joined_by_a_line_break_and_one_may_be_empty():
    assert text_of({"a": "x", "b": None}, ["a", "b"]) == "x\n"
    assert text_of({"a": "x", "b": "y"}, ["b", "a"]) == "y\nx"


@pytest.mark.parametrize(
    ("value", "kind", "name"),
    [
        ("NA", "text", "NA"),
        ("1", "text", "1"),
        (1, "a whole number", "1"),
        (True, "true or false", "True"),
    ],
)
def test_labels_keep_their_name_and_kind(value, kind, name):
    assert label_of({"l": value}, "l") == (kind, name)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({}, "missing label"),
        ({"l": None}, "missing label"),
        ({"l": float("nan")}, "missing label"),
        ({"l": "  "}, "missing label"),
        ({"l": 1.5}, "unusable label"),
        ({"l": ["a"]}, "unusable label"),
    ],
)
def test_a_row_without_usable_label_is_a_fault(row, reason):
    with pytest.raises(BadRow) as caught:
        label_of(row, "l")
    assert caught.value.reason == reason


def test_a_missing_column_names_the_nearest_and_the_setting():
    with pytest.raises(
        DataError, match=r"data\.label: a\.csv has no column 'lable'\. Did you mean 'label'\?"
    ):
        check_columns(table(("text", "label")), {"data.text": ["text"], "data.label": ["lable"]})


def test_one_column_cannot_be_text_and_label():
    with pytest.raises(SettingError, match=r"data\.label: column 'text' is already used by data\.text"):
        check_columns(table(("text",)), {"data.text": ["text"], "data.label": ["text"]})


def test_shortened_text_is_one_line_of_at_most_the_length():
    assert len(shorten("word " * 50, 40)) == 40
