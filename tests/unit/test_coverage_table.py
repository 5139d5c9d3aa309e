from __future__ import annotations

from pathlib import Path

import pytest

from scripts.coverage_table import expected_rows, problems

ROWS = [("A1", "tracker"), ("A2", "registry"), ("A3", "export")]
TEST_FILE = """
import pytest

def helper(): ...

def test_sends(): ...

class TestRegistry:
    def test_moves_the_alias(self): ...

@pytest.mark.skip(reason="later")
def test_skipped(): ...

@pytest.mark.xfail
def test_expected_to_fail(): ...
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_tracker.py").write_text(TEST_FILE)
    (tmp_path / "tracker.py").write_text(TEST_FILE)
    return tmp_path


def page(*rows: str) -> str:
    head = "| id | capability | works means | state | test or what is missing |\n|---|---|---|---|---|\n"
    return "# Coverage\n\n" + head + "\n".join(rows) + "\n"


def good_rows() -> list[str]:
    return [
        "| A1 | tracker | sends | works | `tests/test_tracker.py::test_sends` |",
        "| A2 | registry | alias | partial | `tests/test_tracker.py::test_sends`; no alias yet |",
        "| A3 | export | writes | not yet | |",
    ]


def found(rows: list[str], root: Path) -> str:
    return "\n".join(problems(page(*rows), ROWS, root))


def test_a_right_table_has_no_problems(root: Path) -> None:
    assert found(good_rows(), root) == ""


def test_rows_may_be_spread_over_tables_with_other_columns(root: Path) -> None:
    first, second, third = good_rows()
    other = (
        "| id | recipe | state | test or what is missing |\n|---|---|---|---|\n| A3 | export | not yet | |\n"
    )
    assert third.startswith("| A3 ")
    assert problems(page(first, second) + "\ntext\n\n" + other, ROWS, root) == []


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("", "A1: the row 'tracker' is missing"),
        ("| A1 | tracking | sends | not yet | |", "named 'tracking', must be 'tracker'"),
        ("| A9 | tracker | sends | not yet | |", "A9: no such row"),
        ("| A2 | registry | alias | not yet | |", "A2: 2 rows"),
        ("| A1 | tracker | sends | done | |", "state 'done', must be one of: works, partial, not yet"),
        ("| A1 | tracker | sends | works | |", "works, but no test is named"),
        ("| A1 | tracker | sends | works | tested by hand |", "works, but no test is named"),
        ("| A1 | tracker | sends | partial | |", "partial, but what is missing is not said"),
        (
            "| A1 | tracker | sends | partial | `tests/test_tracker.py::test_sends` |",
            "partial, but what is missing is not said",
        ),
        ("| A1 | tracker | sends | not yet |", "4 cells, where the table's head has 5"),
        (
            "| A1 | tracker | sends | works | `tests/test_none.py::test_sends` |",
            "tests/test_none.py is not a file of the tests",
        ),
        (
            "| A1 | tracker | sends | works | `tracker.py::test_sends` |",
            "tracker.py is not a file of the tests",
        ),
        (
            "| A1 | tracker | sends | works | `tests/test_tracker.py::test_sent` |",
            "tests/test_tracker.py has no test test_sent",
        ),
        (
            "| A1 | tracker | sends | works | `tests/test_tracker.py::helper` |",
            "tests/test_tracker.py has no test helper",
        ),
        (
            "| A1 | tracker | sends | works | `tests/test_tracker.py::TestOther::test_moves_the_alias` |",
            "has no test TestOther::test_moves_the_alias",
        ),
        (
            "| A1 | tracker | sends | works | `tests/test_tracker.py::test_skipped` |",
            "test_skipped is skipped or expected to fail",
        ),
        (
            "| A1 | tracker | sends | works | `tests/test_tracker.py::test_expected_to_fail` |",
            "test_expected_to_fail is skipped or expected to fail",
        ),
        (
            "| A1 | tracker | x | works | `tests/test_tracker.py::test_sends` `tests/test_tracker.py::test_x` |",
            "tests/test_tracker.py has no test test_x",
        ),
    ],
)
def test_a_bad_row_is_named_with_its_problem(row: str, problem: str, root: Path) -> None:
    assert problem in found([row, *good_rows()[1:]], root)


def test_a_test_in_a_class_is_found(root: Path) -> None:
    row = "| A1 | tracker | sends | works | `tests/test_tracker.py::TestRegistry::test_moves_the_alias` |"
    assert found([row, *good_rows()[1:]], root) == ""


def test_rows_out_of_order_are_reported(root: Path) -> None:
    assert "not in the order" in found(good_rows()[::-1], root)


def test_the_kept_list_names_each_row_once() -> None:
    ids = [id for id, _ in expected_rows()]
    assert len(ids) == len(set(ids)) == 146
    assert all(name for _, name in expected_rows())
