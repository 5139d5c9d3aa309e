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
    slow: bool

    def get_closest_marker(self, name: str) -> bool:
        return name == "slow" and self.slow


@dataclass
class Config:
    """Keeps what is reported as left out."""

    left_out: list[Item] = field(default_factory=list)

    @property
    def hook(self) -> Config:
        return self

    def pytest_deselected(self, items: list[Item]) -> None:
        self.left_out += items


QUICK = [Item(f"tests/test_it.py::test_quick[{number}]", slow=False) for number in range(5)]
SLOW = [Item(f"tests/test_it.py::test_slow[{number}]", slow=True) for number in range(30)]


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
