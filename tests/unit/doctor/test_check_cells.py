"""Cells of a file of rows: what is garbled, missing, one class, no class, or spelled in several ways."""

from __future__ import annotations

import pytest

from snugfit.doctor.check_cells import classes, garbled, placeholders
from snugfit.doctor.door import examine_file
from snugfit.doctor.findings import PITFALLS
from snugfit.errors import UserError

TEXTS = [f"this is text number {number} about {'cats' if number % 2 else 'dogs'}" for number in range(40)]


def file_of(folder, rows, head="text,label", encoding="utf-8"):
    path = folder / "rows.csv"
    path.write_text("\n".join([head, *rows]) + "\n", encoding=encoding)
    return str(path)


def said(path, **given):
    found = examine_file(path, text=["text"], **given)
    assert all(finding.pitfall in PITFALLS and finding.what and finding.fix for finding in found.findings)
    return {finding.pitfall: str(finding.certainty) for finding in found.findings}, found.left_out


def test_a_column_called_label_is_looked_at_without_being_named(tmp_path):
    path = file_of(tmp_path, [f"{text},a" for text in TEXTS])
    assert said(path) == ({"imbalance": "certain"}, ("tokens: give --model",))


def test_labels_under_another_name_are_said_not_to_be_looked_at_until_they_are_named(tmp_path):
    path = file_of(tmp_path, [f"{text},a" for text in TEXTS], head="text,sentiment")
    findings, left_out = said(path)
    assert findings == {} and left_out[1] == "labels: give --label, of 'sentiment'"
    assert said(path, label="sentiment")[0] == {"imbalance": "certain"}


def test_a_label_column_that_is_not_there_is_a_mistake_of_the_user(tmp_path):
    path = file_of(tmp_path, TEXTS, head="text")
    assert said(path)[1][1] == "labels: the file has none"
    with pytest.raises(UserError, match="has no column 'label'"):
        said(path, label="label")


@pytest.mark.parametrize(("every", "certainty"), [(4, "likely"), (1, "certain")])
def test_missing_labels_are_counted_and_those_of_half_the_file_are_certain(tmp_path, every, certainty):
    rows = [f"{text},{'' if n % every == 0 else 'ab'[n % 2]}" for n, text in enumerate(TEXTS)]
    (finding,) = [
        each
        for each in examine_file(file_of(tmp_path, rows), text=["text"]).findings
        if each.pitfall == "empty_rows"
    ]
    assert finding.certainty == certainty
    assert finding.what.startswith(f"{40 // every} of 40 rows cannot be used: missing label")


def test_a_file_in_another_encoding_is_certain_and_names_the_conversion(tmp_path):
    rows = [f"{text} café,{'ab'[n % 2]}" for n, text in enumerate(TEXTS)]
    path = file_of(tmp_path, rows, encoding="latin-1")
    (finding,) = examine_file(path, text=["text"]).findings
    assert finding.certainty == "certain" and "40 of 40 rows" in finding.what and "iconv" in finding.fix
    assert said(file_of(tmp_path, rows))[0] == {}


def test_utf8_that_was_read_as_windows_1252_is_shown_as_it_was_meant():
    (finding,) = garbled(["plain", "un cafÃ©"], [2, 3])
    assert finding.evidence == ("line 3: 'un cafÃ©' means 'un café'",)
    assert not list(garbled(["un café", "Ö, Ã and ©", "Straße", "naïve £5"]))
    (finding,) = garbled(["lost \N{REPLACEMENT CHARACTER}"])
    assert finding.certainty == "likely"


def test_words_for_nothing_are_no_texts_and_words_that_hold_them_are():
    (finding,) = placeholders(["nan", "NULL ", "Nan is a name"], [2, 3, 4])
    assert "2 of 3" in finding.what
    assert not list(placeholders(["none of these", "a null result"]))


@pytest.mark.parametrize(
    ("labels", "pitfall", "certainty"),
    [
        (["a"] * 20, "imbalance", "certain"),
        ([f"id{number}" for number in range(20)], "rare_labels", "certain"),
        ([f"{number}.5" for number in range(20)], "rare_labels", "worth a look"),
        (["a"] * 10 + ["b"] * 9 + ["c"], "rare_labels", "likely"),
        (["Good"] * 10 + ["bad"] * 9 + ["good"] * 5, "label_spelling", "likely"),
    ],
)
def test_labels_that_are_no_sound_classes_are_named(labels, pitfall, certainty):
    (finding,) = classes(labels)
    assert (finding.pitfall, finding.certainty) == (pitfall, certainty)


@pytest.mark.parametrize(
    "labels", [[], ["a", "b"] * 10, ["1", "2", "3"] * 5, [("a", "b"), ("a",), ("c",)], ["A1", "a2"] * 9]
)
def test_sound_classes_and_sets_of_labels_are_left_alone(labels):
    assert not list(classes(labels))
