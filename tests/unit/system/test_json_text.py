"""JSON of any depth is read or refused in a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from snugfit.data.sources import read_table
from snugfit.errors import ModelError, RunFolderError, SettingError
from snugfit.models.bundle import read_meta
from snugfit.models.folders import check_config
from snugfit.recipe import load_recipe
from snugfit.recipe.strict_yaml import read_value
from snugfit.report.page import write_report
from snugfit.results.run_folder import RunFolder
from snugfit.results.tool_results import results
from snugfit.run.checkpoint.checkpoint_files import _read
from snugfit.system.json_text import MAX_DEPTH, parse_json
from snugfit.tracking.cursor import Cursors
from snugfit.tracking.spool import parse_line

DEPTHS = (MAX_DEPTH + 1, 900, 100_000)


def nested(depth: int) -> str:
    return '{"a":' * (depth - 1) + "[]" + "}" * (depth - 1)


def test_what_is_deep_but_not_too_deep_is_read() -> None:
    value, depth = parse_json(nested(MAX_DEPTH)), 0
    while value:
        value, depth = value["a"], depth + 1
    assert depth == MAX_DEPTH - 1
    assert parse_json(b"[" + b"[]," * 999 + b"[]]") == [[]] * 1000


@pytest.mark.parametrize("depth", DEPTHS)
def test_what_is_too_deep_is_refused_by_every_reader(depth: int, tmp_path: Path) -> None:
    text = nested(depth)
    with pytest.raises(ValueError, match="levels deep"):
        parse_json(text)
    for name in ("plan.json", "snugfit.json", "config.json", "tracking.json", "manifest.json", "found.json"):
        (tmp_path / name).write_text(text)
    with pytest.raises(RunFolderError, match="levels deep"):
        RunFolder(tmp_path).read_json("plan.json")
    with pytest.raises(ModelError, match="levels deep"):
        read_meta(tmp_path)
    with pytest.raises(ModelError, match="levels deep"):
        check_config(tmp_path)
    with pytest.raises(RunFolderError, match="levels deep"):
        Cursors(tmp_path)
    with pytest.raises(ValueError, match="levels deep"):
        _read(tmp_path)
    home = tmp_path / "out/name/tools/certify/x"
    home.mkdir(parents=True)
    (home / "found.json").write_text(text)
    assert list(results(tmp_path / "out", "name")) == []
    assert parse_line(f'{{"event": "update", "deep": {text}}}'.encode()) is None
    (tmp_path / "rows.jsonl").write_text(f'{{"text": "a"}}\n{{"text": {text}}}\n')
    table = read_table(str(tmp_path / "rows.jsonl"))
    assert [len(table.rows), *(fault.line for fault in table.faults)] == [1, 2]


@pytest.mark.parametrize("depth", DEPTHS)
def test_a_recipe_that_is_too_deep_is_refused(depth: int, tmp_path: Path) -> None:
    deep = "[" * depth + "]" * depth
    (tmp_path / "r.yaml").write_text(f"task: {deep}\n")
    with pytest.raises(SettingError, match="nested too deeply"):
        load_recipe(tmp_path / "r.yaml")
    with pytest.raises(SettingError, match="cannot be read as YAML"):
        read_value(deep, "override")


def test_a_report_is_written_beside_a_plan_that_is_too_deep(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_text('{"event": "run", "name": "x"}\n')
    (tmp_path / "plan.json").write_text(nested(5000))
    assert write_report(tmp_path).exists()
