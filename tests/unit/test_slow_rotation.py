"""`make test` runs a fifth of the slow tests; five commits in a row run all of them."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests import conftest


@dataclass(frozen=True)
class Item:
    """What the rotation looks at in a test."""

    nodeid: str
    marker: pytest.Mark | None = field(default=None, compare=False)

    def get_closest_marker(self, name: str) -> pytest.Mark | None:
        return self.marker if name == "slow" else None


@dataclass
class Config:
    """Keeps what is reported as left out."""

    left_out: list[Item] = field(default_factory=list)

    @property
    def hook(self) -> Config:
        return self

    def pytest_deselected(self, items: list[Item]) -> None:
        self.left_out += items


QUICK = [Item(f"tests/test_it.py::test_quick[{number}]") for number in range(5)]
SLOW = [Item(f"tests/test_it.py::test_slow[{number}]", pytest.mark.slow.mark) for number in range(30)]
MANY = [
    Item(f"tests/test_it.py::test_many[{number}]", pytest.mark.slow(parts=20).mark) for number in range(200)
]


def kept(monkeypatch: pytest.MonkeyPatch, slow: str, commits: int) -> list[Item]:
    monkeypatch.setenv("SNUGFIT_SLOW", slow)
    monkeypatch.setattr(conftest, "commits", lambda: commits)
    config, items = Config(), [*QUICK, *SLOW]
    conftest.pytest_collection_modifyitems(config, items)  # type: ignore[arg-type]
    assert {*items, *config.left_out} == {*QUICK, *SLOW}
    return items


def test_five_commits_in_a_row_run_every_slow_test_once(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [kept(monkeypatch, "part", commits) for commits in range(7, 12)]
    assert all(part[:5] == QUICK for part in parts)
    assert all(1 <= len(part[5:]) <= 12 for part in parts)
    slow = [item for part in parts for item in part[5:]]
    assert len(slow) == 30
    assert set(slow) == set(SLOW)


def test_of_tests_in_twenty_parts_a_commit_runs_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SNUGFIT_SLOW", "part")
    seen: list[Item] = []
    for number in range(30, 50):
        monkeypatch.setattr(conftest, "commits", lambda number=number: number)
        items = list(MANY)
        conftest.pytest_collection_modifyitems(Config(), items)  # type: ignore[arg-type]
        assert len(items) <= 25
        seen += items
    assert len(seen) == 200
    assert set(seen) == set(MANY)


def test_a_commit_always_runs_the_same_slow_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    assert kept(monkeypatch, "part", 3) == kept(monkeypatch, "part", 3)


@pytest.mark.parametrize("slow", ["all", ""])
def test_otherwise_every_slow_test_runs(monkeypatch: pytest.MonkeyPatch, slow: str) -> None:
    assert kept(monkeypatch, slow, 3) == [*QUICK, *SLOW]


def test_commits_are_counted_and_none_outside_a_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conftest, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert conftest.commits() == 0
    who = ["-c", "user.name=Test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false"]
    for words in (["init", "-q"], *[[*who, "commit", "-q", "--allow-empty", "-m", "one more"]] * 2):
        subprocess.run(["git", *words], cwd=tmp_path, check=True)
    assert conftest.commits() == 2
