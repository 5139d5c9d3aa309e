"""Rows that a task of one's own encodes one by one: those that cannot be used are told together, or left out and counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from snugfit.data.bad_rows import BadRow
from snugfit.data.files.file_rows import read_rows
from snugfit.errors import DataError


def encode(row: Any) -> int:
    if not row["n"].isdigit():
        raise BadRow("no number", f"has '{row['n']}'")
    return int(row["n"])


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "rows.csv"
    path.write_text("n\n1\nx\n3\ny\n")
    return str(path)


def test_faults_are_told_together_with_their_lines(file: str) -> None:
    with pytest.raises(
        DataError, match=r"2 rows cannot be used: no number \(2\)(.|\n)*:3: has 'x'(.|\n)*:5: has 'y'"
    ):
        read_rows(file, encode, list)


def test_rows_that_are_skipped_are_counted_and_the_others_keep_their_lines(file: str) -> None:
    rows = read_rows(file, encode, list, bad_rows="skip")
    assert ([*rows.examples], rows.lines, rows.columns) == ([1, 3], [2, 4], ("n",))
    assert rows.report.skipped == {"no number": 2} and rows.report.validation == 2
    assert [row["n"] for row in rows.rows] == ["1", "3"] and list(rows.fingerprints) == [file]


def test_a_file_without_a_row_that_can_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("n\nx\n")
    with pytest.raises(DataError, match="has no row that can be used"):
        read_rows("rows.csv", encode, list, bad_rows="skip", folder=tmp_path)
