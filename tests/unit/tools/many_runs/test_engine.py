"""The tracker's run above those of a cross-validation or a search."""

from __future__ import annotations

import functools
import threading
from pathlib import Path

import pytest

from snugfit.recipe import load_recipe
from snugfit.results.run_folder import RunFolder
from snugfit.tools.many_runs import engine
from snugfit.tools.many_runs.engine import TrackedRuns
from snugfit.tracking import follower
from snugfit.tracking.spool import read_events
from tests.unit.tracking.tracking_fakes import FakeBackend, Store

RECIPE = """\
name: points
task: text-classification
model: encoder
data: {train: points.csv, validation: 0.25, text: text, label: label}
"""


def tracked(
    folder: Path, backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> tuple[TrackedRuns, list[str]]:
    (folder / "points.yaml").write_text(RECIPE)
    recipe = load_recipe(folder / "points.yaml", [f"output={folder}"])
    monkeypatch.setattr(engine, "Tracker", functools.partial(follower.Tracker, backend=backend))
    said: list[str] = []
    return TrackedRuns(recipe, RunFolder.create(folder, "points"), "cv", said.append), said


def test_a_tracker_that_hangs_is_waited_for_at_the_start_and_the_end_alone_and_no_longer_than_by_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "END_SECONDS", 0.1)
    monkeypatch.setattr(follower, "_SILENT_SECONDS", 0.02)
    waits: list[float] = []
    wait = follower.Tracker._wait
    monkeypatch.setattr(
        follower.Tracker,
        "_wait",
        lambda tracker, until, timeout: (waits.append(tracker._left), wait(tracker, until, timeout))[1],
    )
    go_on, store = threading.Event(), Store()
    runs, said = tracked(tmp_path, FakeBackend(store, before=lambda call: hang(go_on)), monkeypatch)
    with runs:
        for update in range(1, 6):
            runs.say("folds", update=update, mean={"accuracy": 0.5}, deviation={}, corrected_error={})
        assert runs.run_id is None
        runs.end("finished")
    assert waits == [0.1, 0.0]
    assert threading.get_ident() not in store.threads
    assert "7 events have not reached" in said[-1] and "snugfit track replay" in said[-1]
    go_on.set()


def test_runs_are_given_the_id_of_the_whole_from_the_first_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store()
    runs, said = tracked(tmp_path, FakeBackend(store), monkeypatch)
    with runs:
        assert runs.run_id == "run-1"
        runs.say("folds", update=1, mean={"accuracy": 0.5}, deviation={}, corrected_error={})
        runs.end("finished")
    assert store.steps("run-1", "mean/accuracy") == [1]
    assert store.status == {"run-1": "finished"}
    assert said == ["beginning its run in the tracker …"]


@pytest.mark.parametrize("told", [False, True])
def test_ctrl_c_at_the_start_ends_all_unless_it_was_said_to_end_the_wait_for_the_tracker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: bool
) -> None:
    waits: list[float] = []

    def until(seconds: float) -> bool:
        waits.append(seconds)
        if len(waits) > told:
            raise KeyboardInterrupt
        return False

    wait = follower.Tracker._wait
    monkeypatch.setattr(follower.Tracker, "_wait", lambda tracker, _, timeout: wait(tracker, until, timeout))
    runs, said = tracked(tmp_path, FakeBackend(Store()), monkeypatch)
    if not told:
        with pytest.raises(KeyboardInterrupt), runs:
            raise AssertionError("no run begins")
        assert [event["status"] for event in read_events(runs._folder.events) if event["event"] == "end"] == [
            "failed"
        ]
        return
    with runs:
        runs.end("finished")
    assert "Ctrl-C ends the wait" in said[1]


def hang(go_on: threading.Event) -> None:
    assert go_on.wait(60)
