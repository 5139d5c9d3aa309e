"""A run that goes on: what it says where its last bits may come out otherwise than without the stop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import snugfit as sf
from snugfit import session
from snugfit.core.reproducible import ADDRESSES
from snugfit.tracking.spool import read_events


def train(folder: Path, **settings: Any) -> Any:
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(8, 3), torch.randint(0, 2, (8,)))
    options = {"epochs": 1, "output": folder, "track": False, "device": "cpu", "global_batch": 4}
    return sf.train(nn.Linear(3, 2), data, **{**options, **settings})


def said(run: Path) -> list[str]:
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
    assert said(run) == []
    train(tmp_path, resume=run)
    assert said(run) == []


def test_a_run_that_goes_on_with_other_threads_says_so(tmp_path: Path) -> None:
    run = Path(train(tmp_path).run_dir)
    threads = torch.get_num_threads()
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    for event in events:
        if event["event"] == "run":
            event["machine"]["threads"] = threads + 5
    (run / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    train(tmp_path, resume=run)
    (message,) = said(run)
    assert f"another number of threads ({threads + 5} before, {threads} now)" in message


def test_a_run_that_goes_on_where_products_depend_on_addresses_says_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "sums_depend_on_addresses", lambda: True)
    run = Path(train(tmp_path).run_dir)
    assert said(run) == []
    train(tmp_path, resume=run)
    assert said(run) == [ADDRESSES]
