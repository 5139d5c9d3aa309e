"""`make test` runs a fifth of the slow tests; five commits in a row run all of them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).resolve().parents[1] / "conftest.py"
TESTS = """
import pytest

def test_quick(): ...

@pytest.mark.slow
@pytest.mark.parametrize("number", range(30))
def test_slow(number): ...
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "tests").mkdir()
    shutil.copy(CONFTEST, tmp_path / "tests/conftest.py")
    (tmp_path / "tests/test_it.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = slow\n")
    return tmp_path


def collected(checkout: Path, monkeypatch: pytest.MonkeyPatch, slow: str) -> set[str]:
    monkeypatch.setenv("SNUGFIT_SLOW", slow)
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "tests"]
    found = subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=True)
    return {line for line in found.stdout.splitlines() if "::" in line}


def commit(checkout: Path) -> None:
    who = ["-c", "user.name=Test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false"]
    for words in (["init", "-q"], [*who, "commit", "-q", "--no-verify", "--allow-empty", "-m", "one more"]):
        subprocess.run(["git", *words], cwd=checkout, check=True)


def test_five_commits_in_a_row_run_every_slow_test_once(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    every = collected(checkout, monkeypatch, "all")
    assert len(every) == 31
    parts = []
    for _ in range(5):
        commit(checkout)
        parts.append(collected(checkout, monkeypatch, "part"))
    assert all("tests/test_it.py::test_quick" in part for part in parts)
    slow = [test for part in parts for test in part if "test_slow" in test]
    assert len(slow) == 30
    assert set(slow) == every - {"tests/test_it.py::test_quick"}
    assert all(1 <= len(part) - 1 < 15 for part in parts)


def test_outside_a_checkout_a_fifth_is_chosen_too(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(checkout.parent))
    assert 1 < len(collected(checkout, monkeypatch, "part")) < 16
