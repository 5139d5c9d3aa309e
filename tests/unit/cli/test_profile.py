"""The command `profile` on a recipe."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from snugfit.cli import main

PYTHON = """
import torch
from torch import nn

def make_model():
    return nn.Linear(6, 3)

def make_wide():
    return nn.Sequential(nn.Linear(6, 2000), nn.Linear(2000, 2000), nn.Linear(2000, 3))

def rows():
    return [(torch.randn(6), n % 3) for n in range(24)]
"""
RECIPE = """
name: small
task: python
model: small_model:make_model
data: {train: small_model:rows, validation: 0.25}
train: {epochs: 2, global_batch: 6}
track: {mlflow: false}
"""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")  # one for all: a module's name is taken once
    (folder / "small_model.py").write_text(PYTHON)
    path = folder / "small.yaml"
    path.write_text(RECIPE)
    return path


def test_the_last_line_is_one_object_and_the_result_lies_beside_the_runs(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [
        str(recipe),
        f"output={tmp_path / 'runs'}",
        "--updates",
        "2",
        "--memory",
        "--json",
        "--allow-code",
    ]
    assert main(["profile", *arguments]) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out.splitlines()[-1])
    folder = Path(found["folder"])
    assert folder.parent == tmp_path / "runs" / "small" / "tools" / "profile"
    assert json.loads((folder / "found.json").read_text())["identity"]["recipe"]
    # 6 inputs, 3 outputs, 6 rows: forward, and the gradient of the weight alone
    assert found["flops_per_update"] == 2 * (2 * 6 * 6 * 3)
    assert found["limit"] in ("data", "launch", "memory", "compute") and len(found["culprits"]) <= 5
    assert Path(found["trace"]).exists() and found["memory"]["measured"]["peak_bytes"] > 0
    assert "timing 2 updates" in printed.err


def test_what_is_said_names_limit_culprits_and_files(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # of an update of microseconds it would be chance which operators are among the slowest
    given = [str(recipe), f"output={tmp_path / 'runs'}", "model=small_model:make_wide"]
    assert main(["profile", *given, "--updates", "1", "--allow-code", "--shapes"]) == 0
    printed = capsys.readouterr().out
    assert "Operators, by their time on the host" in printed
    assert re.search(r"aten::\w*mm\n.*2000×2000", printed)
    assert "limit" in printed.splitlines()[0]
    for words in ("Culprits", "  1. ", "examples/s", "forward", "profile.html", "trace.json"):
        assert words in printed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [([], "Name a recipe"), (["small.yaml", "--updates", "0"], "--updates: must be at least 1, found 0")],
)
def test_bad_input_is_one_clear_error(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", *arguments]) == 2
    assert words in capsys.readouterr().err
