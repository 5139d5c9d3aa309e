"""Errors about input: their parts, their text, and what every one of them has."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from scripts.error_texts import Text, faults
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


def test_an_error_without_a_part_is_found() -> None:
    whole = Text("run/run.py", 7, "a.b", "8 is more than 4", REMEDY)
    found = [
        replace(whole, problem=" "),
        replace(whole, remedy="lower it"),
        replace(whole, remedy="{remedy}"),
    ]
    assert list(faults([whole, *found])) == [
        "run/run.py:7: no setting or no problem",
        "run/run.py:7: a remedy is a sentence of its own, found 'lower it'",
    ]
