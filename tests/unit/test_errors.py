"""Errors about input: their parts, their text, and what every one of them has."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from scripts.error_texts import PAGE, Text, page, texts
from snugfit.errors import DataError, MissingExtra, SaidElsewhere, SettingError, UserError

REMEDY = "Lower it."


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        ("8 is more than 4", "a.b: 8 is more than 4. Lower it."),
        ("8 is more than 4.", "a.b: 8 is more than 4. Lower it."),
        ("did you mean 4?", "a.b: did you mean 4? Lower it."),
        ("2 rows cannot be used.\n  row 1\n", "a.b: 2 rows cannot be used.\n  row 1\nLower it."),
    ],
)
def test_the_text_is_the_parts_in_sentences(problem: str, text: str) -> None:
    error = SettingError("a.b", problem, REMEDY)
    assert str(error) == text
    assert (error.setting, error.problem, error.remedy) == ("a.b", problem, REMEDY)


def test_an_impossible_value_says_what_is_expected() -> None:
    assert str(SettingError.must_be("rows", "at least 1", 0)) == "rows: must be at least 1, found 0."
    assert (
        str(SettingError.must_be("a", "b", "c", "The default is b."))
        == "a: must be b, found c. The default is b."
    )


def test_the_place_of_a_setting_can_be_added() -> None:
    error = DataError("data.text", "there is no such column", REMEDY).about("my.yaml:3: data.text")
    assert type(error) is DataError
    assert str(error) == "my.yaml:3: data.text: there is no such column. Lower it."


@pytest.mark.parametrize(
    "error",
    [
        SettingError(Path("my.yaml"), "is empty", REMEDY),
        SaidElsewhere.from_text("rank 1: no room."),
        MissingExtra("mlflow", "track"),
    ],
)
def test_an_error_comes_whole_out_of_another_process(error: UserError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)


def test_the_text_of_an_error_from_elsewhere_stays_as_it_is() -> None:
    assert str(SettingError.from_text("a: b. c\nd: e. f")) == "a: b. c\nd: e. f"


def test_each_error_says_what_to_do() -> None:
    found = texts()
    assert len(found) > 900
    assert [place(text) for text in found if not (text.setting.strip() and text.problem.strip())] == []
    no_sentence = [text for text in found if not re.match(r"[A-Z{]", text.remedy.strip())]
    assert [place(text) for text in no_sentence] == [], "a remedy is a sentence of its own"


def place(text: Text) -> str:
    return f"{text.module}:{text.line}"


def test_the_page_of_all_errors_is_as_the_code_has_them() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "write it anew: python -m scripts.error_texts"
