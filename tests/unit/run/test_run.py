"""A run in several sessions: how long it took in all, and how each ends."""

from __future__ import annotations

import functools
import gc
import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import snugfit as sf
from snugfit.core.job import Job, Plan
from snugfit.report.story import read_story
from snugfit.run import trackers
from snugfit.run.spec import RunSpec
from snugfit.system.garbage import loading
from snugfit.tracking import follower
from snugfit.tracking.spool import read_events, worked_seconds
from tests.unit.tracking.tracking_fakes import FakeBackend, Store


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


def test_what_is_written_after_the_end_of_a_run_takes_none_of_its_time() -> None:
    times = {"run": 1, "update": 4, "end": 5, "note": 40, "resume": 100, "evaluation": 101}
    assert worked_seconds([{"event": kind, "time": time} for kind, time in times.items()]) == 5.0


@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="os.kill ends a process on Windows")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_tracker_is_waited_for_ends_the_wait_of_a_run_that_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    go_on, waits = threading.Event(), threading.Event()
    monkeypatch.setattr(
        trackers.Trackers, "_note", lambda _, text: waits.set() if "waiting" in text else None
    )

    def hang(call: int) -> None:
        assert waits.wait(60)
        if call == 1:
            os.kill(os.getpid(), number)
        assert go_on.wait(60)

    tracker = functools.partial(follower.Tracker, backend=FakeBackend(Store(), before=hang))
    monkeypatch.setattr(trackers, "Tracker", tracker)
    monkeypatch.setattr(follower, "_SILENT_SECONDS", 0.01)
    result = train(tmp_path, track=True)
    go_on.set()
    assert result.status == "finished"
    kinds = [event["event"] for event in read_events(Path(result.run_dir) / "events.jsonl")]
    assert kinds[-3:] == ["end", "files", "warning"]
    warning = read_events(Path(result.run_dir) / "events.jsonl")[-1]["message"]
    assert "the wait was ended" in warning and "snugfit track replay" in warning
    assert "snugfit track replay" in (Path(result.run_dir) / "report.html").read_text()


def test_a_run_that_ends_has_its_report_before_the_tracker_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    class Slow(follower.Tracker):
        def flush(self, timeout: float | None = None) -> follower.TrackingResult:
            end, files = read_events(self.run_dir / "events.jsonl")[-2:]
            seen.append((end["event"], files["files"], (self.run_dir / "report.html").exists()))
            return super().flush(timeout)

    monkeypatch.setattr(trackers, "Tracker", functools.partial(Slow, backend=FakeBackend(Store())))
    result = train(tmp_path, track=True)
    assert seen == [("end", ["report.html"], True)]
    assert result.tracker_run_id == "run-1"


def test_the_data_set_of_a_run_made_in_python_is_an_input_with_a_digest_of_its_rows(tmp_path: Path) -> None:
    def inputs(labels: int) -> list[dict[str, Any]]:
        torch.manual_seed(0)
        data = TensorDataset(torch.randn(12, 3), torch.full((12,), labels))
        made = {"epochs": 1, "output": tmp_path, "track": False, "device": "cpu", "validation": 0.25}
        result = sf.train(nn.Linear(3, 2), data, **made)  # type: ignore[arg-type]
        (run,) = (
            each for each in read_events(Path(result.run_dir) / "events.jsonl") if each["event"] == "run"
        )
        return run["inputs"]

    one, same, other = inputs(0), inputs(0), inputs(1)
    assert [(each["context"], each["source"], each["rows"]) for each in one] == [
        ("train", "TensorDataset", 9),
        ("validation", "TensorDataset", 3),
    ]
    assert one == same
    assert {each["sha256"] for each in one}.isdisjoint(each["sha256"] for each in other)


def test_garbage_is_looked_for_as_usual_from_when_a_run_has_loaded() -> None:
    task: Any = object()
    usual, while_loading = gc.get_threshold(), []

    def load(_: object) -> Any:
        while_loading.append(gc.get_threshold())
        return task

    job = Job.of(global_batch=4, updates=1)
    spec = RunSpec(name="run", job=job, plan=Plan(), techniques=(), load=load)
    with loading():
        assert spec.loaded() is task and gc.get_threshold() == usual
    assert while_loading != [usual]
