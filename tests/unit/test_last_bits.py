"""A run that goes on: what it says where its last bits may come out otherwise than without the stop."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import snugfit as sf
from snugfit.recipe import load_recipe
from snugfit.run import run as way
from snugfit.run.call_options import RunOptions
from snugfit.run.from_recipe import train_recipe
from snugfit.system.rounding import ADDRESSES, MKL_MODE
from snugfit.tracking.spool import read_events


def train(folder: Path, **settings: Any) -> Any:
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(8, 3), torch.randint(0, 2, (8,)))
    options = {"epochs": 1, "output": folder, "track": False, "device": "cpu", "global_batch": 4}
    return sf.train(nn.Linear(3, 2), data, **{**options, **settings})


def warnings_of(run: Path) -> list[str]:
    """The warnings of the last session."""
    events = list(read_events(run / "events.jsonl"))
    last = max(place for place, event in enumerate(events) if event["event"] == "run")
    return [
        event["message"]
        for event in events[last:]
        if event["event"] == "warning" and event["message"].startswith("machine:")
    ]


def test_a_run_that_goes_on_where_it_began_says_nothing_of_the_machine(tmp_path: Path) -> None:
    run = Path(train(tmp_path).run_dir)
    assert warnings_of(run) == []
    train(tmp_path, resume=run)
    assert warnings_of(run) == []


def test_a_run_that_goes_on_with_other_threads_says_so(tmp_path: Path) -> None:
    run = Path(train(tmp_path).run_dir)
    threads = torch.get_num_threads()
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    for event in events:
        if event["event"] == "run":
            event["machine"]["threads"] = threads + 5
    (run / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    train(tmp_path, resume=run)
    (message,) = warnings_of(run)
    assert f"another number of threads ({threads + 5} before, {threads} now)" in message


def test_a_run_that_goes_on_where_products_depend_on_addresses_says_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(way, "sums_depend_on_addresses", lambda: True)
    run = Path(train(tmp_path).run_dir)
    assert warnings_of(run) == []
    train(tmp_path, resume=run)
    assert warnings_of(run) == [ADDRESSES]


_OWN = """
import os, torch
from torch.utils.data import TensorDataset
modes = []
def model():
    return torch.nn.Linear(3, 2)
def rows():
    modes.append(os.environ.get("MKL_CBWR"))
    return TensorDataset(torch.randn(8, 3).cos(), torch.arange(8) % 2)
"""


def test_sums_are_fixed_before_code_of_a_recipe_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MKL reads its mode when it is first asked for anything, which may be the cosines of a data set."""
    monkeypatch.setenv(MKL_MODE, "")
    (tmp_path / "cosines.py").write_text(_OWN)
    recipe = tmp_path / "own.yaml"
    recipe.write_text(
        "task: python\nmodel: cosines:model\ndata: {train: cosines:rows}\ntrain: {epochs: 1, global_batch: 4}\n"
        "optimizer: {sgd: {learning_rate: 0.1}}\nplan: {device: cpu}\ntrack: {mlflow: false}\n"
    )
    options = RunOptions(fast_dev_run=True)
    train_recipe(load_recipe(recipe, [f"output={tmp_path}"], allow_code=True), options)
    modes = sys.modules["cosines"].modes
    assert modes and set(modes) == {"AUTO"}
