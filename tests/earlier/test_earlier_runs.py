"""Runs, bundles and recipes that an earlier state of the project made go on, predict and resolve (`make.py` says how they were made)."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

MADE = Path(__file__).parent / "made"
_MADE_IN = "/tmp/earlier"
LOAD = """
from pathlib import Path

import torch
from snugfit.models.bundle import load_bundle

model, _, tokenizer = load_bundle(Path("best"))
ids = tokenizer("row 1: the quick", return_tensors="pt")["input_ids"]
with torch.no_grad():
    print(model(input_ids=ids, labels=ids).loss.item())
"""
"""How a user is told to load a bundle in Python."""


@pytest.fixture
def made(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A copy of the folder of a recipe, whose run is told where it lies now."""
    folder = tmp_path / str(request.param)
    shutil.copytree(MADE / folder.name, folder)
    recipe = folder / "stopped/recipe.yaml"
    recipe.write_text(recipe.read_text(encoding="utf-8").replace(_MADE_IN, str(tmp_path)), encoding="utf-8")
    return folder


def snugfit(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "snugfit", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def losses(run: Path) -> list[float]:
    events = map(json.loads, (run / "events.jsonl").read_text(encoding="utf-8").splitlines())
    return [event["metrics"]["loss"] for event in events if event["event"] == "update"]


@pytest.mark.slow
@pytest.mark.parametrize("made", ["mlp", "lm"], indirect=True)
def test_a_run_of_an_earlier_state_goes_on_as_it_would_have(made: Path) -> None:
    reference = json.loads((made / "expected.json").read_text(encoding="utf-8"))["losses"]
    before = len(losses(made / "stopped"))
    assert 0 < before < len(reference)
    snugfit(made, "resume", "stopped", "-q")
    # another processor may round otherwise, and Adam makes much of little
    assert losses(made / "stopped") == pytest.approx(reference, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("made", ["lm"], indirect=True)
def test_a_model_of_an_earlier_state_says_what_it_said(made: Path) -> None:
    (script := made / "load.py").write_text(LOAD, encoding="utf-8")
    reference = json.loads((made / "expected.json").read_text(encoding="utf-8"))["losses"][-1]
    done = subprocess.run([sys.executable, script], cwd=made, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(reference, rel=0.01)


@pytest.mark.slow
@pytest.mark.parametrize("made", ["mlp"], indirect=True)
def test_a_recipe_of_an_earlier_run_is_planned(made: Path) -> None:
    assert "micro-batch 3" in snugfit(made, "plan", "stopped/recipe.yaml", "--no-search")
