"""Runs that are stopped by signals or killed, and resumed."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from snugfit.run.checkpoint import checkpoint_files
from snugfit.tracking.spool import read_events
from tests.faults.scenarios import UPDATES
from tests.laws.problems import differences

pytestmark = pytest.mark.slow

Start = Callable[..., Any]


def run_dir(output: Path) -> Path:
    (folder,) = (path.parent for path in output.glob("*/*/events.jsonl"))
    return folder


def result_of(output: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((output / "result.json").read_text())
    return result


def state(output: Path) -> dict[str, Any]:
    """All of the newest checkpoint but its description, which names the plan: another plan gives the same state."""
    parts = checkpoint_files.load_newest(run_dir(output) / "checkpoints").parts
    assert parts["run"].pop("description")
    return parts


def recorded_steps(output: Path) -> list[tuple[Any, ...]]:
    events = [
        e for e in read_events(run_dir(output) / "events.jsonl") if e["event"] in ("update", "evaluation")
    ]
    return [(event["event"], event["window"], event["metrics"]["loss"]) for event in events]


@pytest.fixture(scope="module")
def whole(nursery: Callable[..., int], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The uninterrupted run."""
    output = tmp_path_factory.mktemp("whole")
    request = {
        "run": "tests.faults.scenarios:train",
        "log": str(output / "log"),
        "with": {"output": str(output)},
    }
    assert nursery(wait=nursery(**request)) == 0, (output / "log").read_text()
    assert result_of(output)["updates"] == UPDATES
    return output


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_killed_at_any_update_goes_on_to_the_same_weights(
    workers: int, whole: Path, start: Start, tmp_path: Path
) -> None:
    # wherever it is killed the law must hold, so chance may choose; the message says where it was
    kills = sorted(random.sample(range(3, UPDATES), 2))
    output = tmp_path / "out"
    settings: dict[str, Any] = {"output": output, "workers": workers}
    for place, kill_at in enumerate(kills):
        resume = {"resume": run_dir(output)} if place else {}
        killed = start("train", kill_at=kill_at, **resume, **settings)
        assert killed.wait() == -signal.SIGKILL, killed.log.read_text()
    finished = start("train", resume=run_dir(output), **settings)
    assert finished.wait() == 0, (kills, finished.log.read_text())
    assert not differences(state(whole), state(output)), kills
    assert recorded_steps(output) == recorded_steps(whole), kills
    assert {key: result_of(output)[key] for key in ("status", "updates", "best", "last")} == {
        key: result_of(whole)[key] for key in ("status", "updates", "best", "last")
    }


def test_a_run_killed_while_a_checkpoint_is_written_beside_it_goes_on_from_the_one_before(
    whole: Path, start: Start, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    killed = start("train", output=output, save="async", hang_at=6, kill_at=7)
    assert killed.wait() == -signal.SIGKILL, killed.log.read_text()
    left = {path.name for path in (run_dir(output) / "checkpoints").iterdir()}
    # the thread that writes the one after them may have begun when the process died, or not yet
    assert left - {".saving-update-00000006"} == {"update-00000002", "update-00000004"}
    finished = start("train", output=output, save="async", resume=run_dir(output))
    assert finished.wait() == 0, finished.log.read_text()
    (place,) = [e["update"] for e in read_events(run_dir(output) / "events.jsonl") if e["event"] == "resume"]
    assert place == 4
    assert not differences(state(whole), state(output))
    assert recorded_steps(output) == recorded_steps(whole)


@pytest.mark.parametrize(
    ("number", "save"),
    [
        (signal.SIGTERM, "sync"),
        (signal.SIGTERM, "async"),
        (signal.SIGINT, "sync"),
        (signal.SIGHUP, "sync"),
    ],
)
def test_a_signal_stops_at_the_boundary_and_the_run_goes_on_to_the_same_weights(
    number: signal.Signals, save: str, whole: Path, start: Start, tmp_path: Path
) -> None:
    output = tmp_path / "out"
    child = start("train", output=output, seconds=0.02, save=save)
    child.wait_for_updates(output, 3)
    child.signal(number)
    assert child.wait() == 0, child.log.read_text()
    result = result_of(output)
    assert (result["status"], result["resumable"]) == ("stopped", True)
    assert result["stop_reason"] == f"received {number.name}"
    assert 3 <= result["updates"] < UPDATES
    # nothing that was trained is lost: the newest checkpoint is of the last update
    assert (
        state(output)["run"]["step"]["progress"]["updates"]
        == result["updates"]
        == recorded_steps(output)[-1][1]
    )
    end = read_events(run_dir(output) / "events.jsonl")[-1]
    assert (end["event"], end["status"]) == ("end", "stopped")

    resumed = start("train", output=output, resume=run_dir(output))
    assert resumed.wait() == 0, resumed.log.read_text()
    assert not differences(state(whole), state(output))
    assert recorded_steps(output) == recorded_steps(whole)


def test_a_signal_to_the_whole_group_does_not_lose_the_run_with_its_workers(
    whole: Path, start: Start, tmp_path: Path
) -> None:
    """As `timeout` and job schedulers do it: the workers die at once, the run stops at its boundary."""
    output = tmp_path / "out"
    child = start("train", output=output, seconds=0.02, load_seconds=0.02, workers=2)
    child.wait_for_updates(output, 2)
    child.signal(signal.SIGTERM, group=True)
    assert child.wait() == 0, child.log.read_text()
    assert result_of(output)["stop_reason"] == "received SIGTERM"
    resumed = start("train", output=output, resume=run_dir(output))
    assert resumed.wait() == 0, resumed.log.read_text()
    assert not differences(state(whole), state(output))


def test_a_second_interrupt_ends_at_once_and_what_was_saved_stays_resumable(
    start: Start, tmp_path: Path
) -> None:
    output, mark, received = tmp_path / "out", tmp_path / "mark", tmp_path / "received"
    assert start("train", output=output, stop_after=0.0, updates=4).wait() == 0
    child = start(
        "train", output=output, resume=run_dir(output), updates=4, seconds=20.0, mark=mark, received=received
    )
    child.wait_for(mark.exists)
    child.signal(signal.SIGINT)
    child.wait_for(received.exists)
    child.signal(signal.SIGINT)
    assert child.wait() == 130, child.log.read_text()
    end = read_events(run_dir(output) / "events.jsonl")[-1]
    assert (end["event"], end["status"], end["resumable"]) == ("end", "stopped", True)
    assert end["stop_reason"] == "KeyboardInterrupt"
    assert "received SIGINT: stops after this update, and saves." in child.log.read_text()
    assert state(output)["run"]["step"]["progress"]["updates"] == 1


def test_a_run_that_is_under_way_is_not_resumed_by_a_second_process(start: Start, tmp_path: Path) -> None:
    output = tmp_path / "out"
    first = start("train", output=output, seconds=0.05)
    first.wait_for_updates(output, 2)
    second = start("train", output=output, resume=run_dir(output))
    assert second.wait() == 1
    assert "RunFolderError" in second.log.read_text()
    assert f"{run_dir(output)}: another process is training this run." in second.log.read_text()
    first.signal(signal.SIGTERM)
    assert first.wait() == 0, first.log.read_text()
    kinds = [event["event"] for event in read_events(run_dir(output) / "events.jsonl", raw=True)]
    assert kinds.count("run") == 1
    assert "resume" not in kinds


def test_a_time_limit_stops_the_run(start: Start, tmp_path: Path) -> None:
    output = tmp_path / "out"
    child = start("train", output=output, seconds=0.02, stop_after=0.3)
    assert child.wait() == 0, child.log.read_text()
    result = result_of(output)
    assert (result["status"], result["stop_reason"]) == ("stopped", "stopped after 0.3s as asked")
    assert result["updates"] < UPDATES
