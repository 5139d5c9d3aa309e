"""A run in several sessions: how long it took in all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

import snugfit as sf
from snugfit.report.story import read_story
from snugfit.tracking.spool import read_events


def train(folder: Path, **settings: Any) -> Any:
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(12, 3), torch.randint(0, 2, (12,)))
    plain = {"epochs": 1, "output": folder, "track": False, "device": "cpu", "global_batch": 4}
    return sf.train(nn.Linear(3, 2), data, **{**plain, **settings})


def rewrite(run: Path, change: Callable[[dict[str, Any]], None]) -> None:
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    for event in events:
        change(event)
    (run / "events.jsonl").write_text("".join(f"{json.dumps(event)}\n" for event in events))


def test_the_duration_of_a_run_is_that_of_all_its_sessions_without_the_pauses(tmp_path: Path) -> None:
    run = Path(train(tmp_path, stop_after_seconds=1e-6).run_dir)

    def hours_ago(event: dict[str, Any]) -> None:
        """The first session began five hours ago and took 1000 seconds."""
        event["time"] -= 18_000 if event["event"] != "end" else 17_000

    rewrite(run, hours_ago)
    result = train(tmp_path, resume=run)
    assert 1000 <= result.seconds < 2000
    end = read_events(run / "events.jsonl")[-1]
    assert (end["event"], end["seconds"]) == ("end", result.seconds)
    assert 1000 <= read_story(run).seconds < 2000
    assert any(f"{words} " in (run / "report.html").read_text() for words in ("16m", "17m"))
