"""Rows of a benchmark of many minutes outlast an end in the middle, and are of one kind of measurement."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
SETTINGS = {"repeats": 3}


@pytest.fixture(autouse=True)
def _benchmarks_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.delitem(sys.modules, "common", raising=False)


def test_what_was_measured_before_an_end_stays_and_the_rest_is_missing(tmp_path: Path) -> None:
    from common import Rows

    first = Rows(tmp_path, ["a", "b", "c"], SETTINGS)
    assert first.missing == ["a", "b", "c"]
    first.add("c", {"rate": 1})
    first.add("a", {"rate": 2})
    os.rename(first.path, earlier := first.path.with_name("2020-01-01.json"))
    after = Rows(tmp_path, ["a", "b", "c"], SETTINGS)
    assert (after.missing, after.path) == (["b"], earlier)
    after.add("b", {"rate": 3})
    content = json.loads(earlier.read_text())
    assert [(name, run["rate"]) for name, run in content["runs"].items()] == [("a", 2), ("b", 3), ("c", 1)]
    assert all(run["commit"] and run["machine"]["cores"] for run in content["runs"].values())
    whole = Rows(tmp_path, ["a", "b", "c"], SETTINGS)
    assert whole.missing == ["a", "b", "c"] and whole.path != earlier


def test_rows_of_other_settings_are_neither_mixed_nor_written_over(tmp_path: Path) -> None:
    from common import Rows

    Rows(tmp_path, ["a", "b"], SETTINGS).add("a", {})
    with pytest.raises(SystemExit, match="other settings"):
        Rows(tmp_path, ["a", "b"], {"repeats": 1})
