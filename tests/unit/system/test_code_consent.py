"""Reading a file runs nothing: code that it names runs where somebody consented to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from snugfit.errors import CodeRefused
from snugfit.system import code_consent


@pytest.fixture(autouse=True)
def nothing_granted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_consent, "_granted", set())


def test_names_are_found_at_any_depth_with_their_settings() -> None:
    values = {
        "model": "nets:build",
        "data": {"train": "rows.csv", "collate": "pack.age:join"},
        "techniques": [{"distillation": {"teacher": "nets:big"}}, "ema"],
        "steps": ("a:b", "c:d"),
        "rate": 1e-3,
    }
    assert code_consent.named_code(values) == {
        "model": "nets:build",
        "data.collate": "pack.age:join",
        "techniques.distillation.teacher": "nets:big",
        "steps": "a:b",
        "steps[1]": "c:d",
    }


def test_no_name_is_lost_where_two_have_one_setting() -> None:
    assert sorted(code_consent.named_code({"x": ["a:b", "c:d", ["e:f", "g:h"]]}).values()) == [
        "a:b",
        "c:d",
        "e:f",
        "g:h",
    ]


def test_code_is_refused_by_name_without_consent_and_runs_with_it() -> None:
    with pytest.raises(
        CodeRefused, match=r"there\.yaml: names code to run \(model: os:abort\).*--allow-code"
    ):
        code_consent.require({"model": "os:abort"}, Path("there.yaml"), folder=None, allowed=False)
    code_consent.require({"model": "os:abort"}, Path("there.yaml"), folder=None, allowed=True)


def test_consent_is_for_a_name_in_its_folder(tmp_path: Path) -> None:
    code_consent.require({"model": "nets:build"}, "first", folder=tmp_path / "mine", allowed=True)
    code_consent.require({"loss": "nets:build"}, "its run", folder=tmp_path / "mine", allowed=False)
    with pytest.raises(CodeRefused):
        code_consent.require({"model": "nets:build"}, "other", folder=tmp_path / "theirs", allowed=False)


def test_a_link_to_a_file_elsewhere_is_not_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir(), there.mkdir()
    (there / "r.yaml").touch()
    (here / "link.yaml").symlink_to(there / "r.yaml")
    monkeypatch.chdir(here)
    assert code_consent.is_here(Path("own.yaml"))
    assert not code_consent.is_here(Path("link.yaml"))
    assert not code_consent.is_here(Path("../there/r.yaml"))
