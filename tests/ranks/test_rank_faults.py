"""Runs on two devices by the command line: ranks that are killed, hang or fail, and runs that are stopped."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

from snugfit.cli import main
from snugfit.run.checkpoint import checkpoint_files, sharded_files
from snugfit.tracking.spool import read_events
from tests.ranks import faulty
from tests.ranks.forked import run_command

UPDATES = 10
TOLERANCE = 1e-10
TWO = ("--devices", "2", "--no-plan")


def recipe(folder: Path, **changes: Any) -> str:
    """A recipe of ten updates, two windows an epoch, saved every second one; the path of its file."""
    settings: dict[str, Any] = {
        "name": "faulty",
        "task": "python",
        "model": "tests.ranks.faulty:Faulty",
        "data": {"train": "tests.ranks.faulty:make_points", "validation": 0.2},
        "train": {"updates": UPDATES, "global_batch": 8},
        "optimizer": {"adamw": {"learning_rate": 0.01}},
        "schedule": {"cosine": {}},
        "techniques": [{"clip_norm": {"max_norm": 0.5}}, {"ema": {"decay": 0.8}}],
        "evaluate": {"every": 5},
        "checkpoint": {"every": 2},
        "plan": {"device": "cpu"},
        "track": {"mlflow": False},
        "output": str(folder / "runs"),
    }
    for key, value in changes.items():
        settings[key] = {**settings[key], **value} if isinstance(value, dict) else value
    path = folder / "faulty.yaml"
    path.write_text(yaml.safe_dump(settings))
    return str(path)


Answer = tuple[int, dict[str, Any], str]


@pytest.fixture
def snugfit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Answer]:
    """Runs a command; gives its exit code, the object on stdout, and what was on stderr."""

    def run(*arguments: str, fault: dict[str, Any] | None = None) -> Answer:
        monkeypatch.setenv(faulty.FAULT, json.dumps(fault or {}))
        out, err = tmp_path / "stdout", tmp_path / "stderr"
        code = run_command([*arguments, "--json"], os.environ, out, err)
        assert code is not None
        output = out.read_text()
        assert len(output.splitlines()) == 1, output + err.read_text()
        return code, json.loads(output), err.read_text()

    return run


def trained(run_dir: str | Path) -> dict[str, Any]:
    """What a finished run has come to: each window's loss, its evaluations, the weights of its last checkpoint."""
    events = read_events(Path(run_dir, "events.jsonl"))
    saved = checkpoint_files.load_newest(Path(run_dir, "checkpoints")).parts["model"]["parameters"]
    return {
        "windows": [event["window"] for event in events if event["event"] == "update"],
        "losses": [event["metrics"]["loss"] for event in events if event["event"] == "update"],
        "evaluations": [event["metrics"]["loss"] for event in events if event["event"] == "evaluation"],
        "weights": sharded_files.loaded(saved, {}),
        "best": load_file(next(Path(run_dir, "best").glob("*.safetensors"))),
    }


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found["windows"] == expected["windows"] == list(range(1, UPDATES + 1))
    for kind in ("losses", "evaluations"):
        assert found[kind] == pytest.approx(expected[kind], rel=TOLERANCE, abs=TOLERANCE)
    for kind in ("weights", "best"):
        torch.testing.assert_close(found[kind], expected[kind], rtol=TOLERANCE, atol=TOLERANCE)


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one device comes to."""
    folder = tmp_path_factory.mktemp("alone")
    assert main(["train", recipe(folder), "--no-plan", "--allow-code", "-q"]) == 0
    (run,) = (folder / "runs/faulty").iterdir()
    return trained(run)


@pytest.mark.slow
def test_a_run_whose_rank_was_killed_goes_on_from_its_checkpoint_and_ends_as_if_it_had_not_been(
    tmp_path: Path, snugfit: Callable[..., Answer], alone: dict[str, Any]
) -> None:
    killed = {"what": "SIGKILL", "rank": 1, "update": 6}
    code, result, errors = snugfit("train", recipe(tmp_path), *TWO, "--max-restarts", "1", "-q", fault=killed)
    assert (code, errors) == (0, ""), errors
    assert (result["status"], result["updates"]) == ("finished", UPDATES)
    assert_same(trained(result["run_dir"]), alone)
    raw = read_events(Path(result["run_dir"], "events.jsonl"), raw=True)
    assert [event["update"] for event in raw if event["event"] == "resume"] == [4]
    assert [event["message"] for event in raw if event["event"] == "warning"] == [
        "all processes were started anew after one of them had failed: restart 1 of 1."
    ]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_run_that_saves_beside_its_updates_goes_on_after_a_kill_and_stops_with_all_saved(
    tmp_path: Path, snugfit: Callable[..., Answer], alone: dict[str, Any], strategy: str
) -> None:
    path = recipe(tmp_path, checkpoint={"every": 2, "save": "async"})
    how = ("--strategy", strategy, "--max-restarts", "1", "-q")
    stopped = {"what": "launcher SIGTERM", "rank": 1, "update": 3}
    code, result, errors = snugfit("train", path, *TWO, *how, fault=stopped)
    assert (code, result["status"], result["updates"]) == (75, "stopped", 3), errors
    run = result["run_dir"]
    assert max(Path(run, "checkpoints").iterdir()).name == "update-00000003"
    killed = {"what": "SIGKILL", "rank": 1, "update": 4}  # of those that this process makes
    code, result, errors = snugfit("resume", run, *how, fault=killed)
    assert (code, result["status"], result["updates"]) == (0, "finished", UPDATES), errors
    assert_same(trained(run), alone)
    raw = read_events(Path(run, "events.jsonl"), raw=True)
    first, second = (event["update"] for event in raw if event["event"] == "resume")
    assert first == 3
    assert second in (4, 6)  # whether the last one was whole by then is a matter of time


@pytest.mark.slow
def test_a_run_ends_with_a_rank_that_was_killed_and_says_which_and_how_to_go_on(
    tmp_path: Path, snugfit: Callable[..., Answer], alone: dict[str, Any]
) -> None:
    killed = {"what": "SIGKILL", "rank": 1, "update": 6}
    code, result, errors = snugfit("train", recipe(tmp_path), *TWO, "-q", fault=killed)
    (run,) = (tmp_path / "runs/faulty").iterdir()
    assert code == 1
    assert result["error"]["kind"] == "TrainingFailed"
    assert "rank 1 (process " in result["error"]["message"]
    assert "was killed by SIGKILL" in result["error"]["message"]
    assert f"snugfit resume {run}" in result["error"]["message"]
    assert errors == f"error: {result['error']['message']}\n"
    end = read_events(run / "events.jsonl")[-1]
    assert (end["event"], end["status"], end["resumable"]) == ("end", "failed", True)
    assert "lost the other ranks" in end["stop_reason"]

    code, result, _ = snugfit("resume", str(run), "-q")  # the recipe in the folder says on how many devices
    assert (code, result["updates"]) == (0, UPDATES)
    assert_same(trained(run), alone)


@pytest.mark.parametrize("number", ["SIGTERM", pytest.param("SIGINT", marks=pytest.mark.slow)])
def test_a_run_that_is_asked_to_stop_is_saved_by_all_ranks_at_one_update_and_goes_on_there(
    tmp_path: Path, snugfit: Callable[..., Answer], alone: dict[str, Any], number: str
) -> None:
    stopped = {"what": f"launcher {number}", "rank": 1, "update": 3}
    code, result, errors = snugfit("train", recipe(tmp_path), *TWO, "-q", fault=stopped)
    assert code == 75
    assert (
        errors.startswith(f"received {number}: stops after this update, and saves.")
        and errors.count("\n") == 1
    )
    assert (result["status"], result["updates"], result["resumable"]) == ("stopped", 3, True)
    assert result["stop_reason"] == f"received {number}"
    code, result, _ = snugfit("resume", result["run_dir"], "--devices", "1", "-q")
    assert (code, result["updates"]) == (0, UPDATES)
    assert_same(trained(result["run_dir"]), alone)


@pytest.mark.slow
def test_what_one_rank_raises_is_shown_with_its_trace_under_its_name(
    tmp_path: Path, snugfit: Callable[..., Answer]
) -> None:
    fault = {"what": "raise", "rank": 1, "update": 3}
    code, result, errors = snugfit("train", recipe(tmp_path), *TWO, "-q", fault=fault)
    assert (code, result["error"]["kind"]) == (1, "TrainingFailed")
    assert "rank 1 failed, and the others were ended: ArithmeticError: it does not add up." in errors
    assert "snugfit resume" in errors
    assert errors.count("Traceback") == 1
    assert 'raise ArithmeticError("it does not add up")' in errors


@pytest.mark.slow
def test_ranks_that_wait_for_one_that_hangs_say_where_and_for_what(
    tmp_path: Path, snugfit: Callable[..., Answer]
) -> None:
    fault = {"what": "hang", "rank": 1, "update": 3}
    code, result, errors = snugfit("train", recipe(tmp_path), *TWO, "-q", "plan.timeout=3s", fault=fault)
    assert (code, result["error"]["kind"]) == (1, "RanksLost"), errors
    assert "rank 0 (" in result["error"]["message"]
    assert "at update 3, waiting in the exchange of gradients" in result["error"]["message"]
    assert "within plan.timeout: one of them hangs" in result["error"]["message"]
    assert "snugfit resume" in result["error"]["message"]
    assert errors == f"error: {result['error']['message']}\n"


@pytest.mark.slow
def test_an_example_that_one_rank_cannot_load_is_the_users_to_mend_and_not_tried_again(
    tmp_path: Path, snugfit: Callable[..., Answer]
) -> None:
    path = recipe(tmp_path, data={"train": "tests.ranks.faulty:make_unreadable"})
    code, result, errors = snugfit("train", path, *TWO, "--max-restarts", "3", "-q")
    assert (code, result["error"]["kind"]) == (2, "DataError")
    assert "cannot be loaded: ValueError: it is torn" in result["error"]["message"]
    assert errors == f"error: {result['error']['message']}\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"evaluate": {"metrics": ["acuracy"]}}, "Did you mean 'accuracy'?"),
        ({"data": {"train": "tests.ranks.faulty:make_unlike"}}, "'data.train (rows)' is 33 on "),
        ({"data": {"train": "tests.ranks.faulty:make_broken"}}, "(rank 1): data"),
        ({"techniques": ["clip_norm", "optimizer_in_backward"]}, "'optimizer_in_backward'"),
    ],
    ids=["metric", "unlike", "broken", "conflict"],
)
def test_what_is_wrong_with_a_recipe_is_said_once_and_leaves_no_folder(
    tmp_path: Path, snugfit: Callable[..., Answer], changes: dict[str, Any], message: str
) -> None:
    code, result, errors = snugfit("train", recipe(tmp_path, **changes), *TWO)
    assert code == 2
    assert message in result["error"]["message"]
    said_before = ("code  ", "reading the data")  # the second where that takes long
    errors = "".join(line for line in errors.splitlines(keepends=True) if not line.startswith(said_before))
    assert errors == f"error: {result['error']['message']}\n"
    assert not list(tmp_path.glob("runs/*/*"))


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_short_trial_runs_on_two_devices(
    tmp_path: Path, snugfit: Callable[..., Answer], strategy: str
) -> None:
    code, result, _ = snugfit("train", recipe(tmp_path), *TWO, "--strategy", strategy, "--fast-dev-run", "-q")
    assert (code, result["status"], result["updates"]) == (0, "finished", 2)


@pytest.mark.slow
def test_two_devices_learn_a_few_batches_by_heart(tmp_path: Path, snugfit: Callable[..., Answer]) -> None:
    path = recipe(tmp_path, optimizer={"adamw": {"learning_rate": 0.05}}, techniques=[])
    code, result, errors = snugfit("train", path, *TWO, "--overfit-batches", "1", "-q")
    assert (code, result["status"]) == (0, "finished"), errors
    assert "it can memorise" in result["stop_reason"]


@pytest.mark.slow
def test_a_run_that_may_take_no_time_stops_at_the_same_update_on_both_devices(
    tmp_path: Path, snugfit: Callable[..., Answer]
) -> None:
    code, result, _ = snugfit("train", recipe(tmp_path), *TWO, "--stop-after", "0.001s", "-q")
    assert (code, result["status"], result["updates"]) == (75, "stopped", 1)


@pytest.mark.slow
def test_a_run_that_had_not_saved_anything_begins_anew(
    tmp_path: Path, snugfit: Callable[..., Answer], alone: dict[str, Any]
) -> None:
    killed = {"what": "SIGKILL", "rank": 0, "update": 2}
    code, result, _ = snugfit("train", recipe(tmp_path), *TWO, "--max-restarts", "1", "-q", fault=killed)
    assert code == 0
    assert_same(trained(result["run_dir"]), alone)
    raw = read_events(Path(result["run_dir"], "events.jsonl"), raw=True)
    assert [event["update"] for event in raw if event["event"] == "resume"] == [0]


@pytest.mark.parametrize("update", [pytest.param(1, marks=pytest.mark.slow), 6])
def test_ranks_of_which_one_runs_out_of_memory_go_on_in_finer_micro_batches_and_end_as_if_it_had_not(
    tmp_path: Path, snugfit: Callable[..., Answer], alone: dict[str, Any], update: int
) -> None:
    """The first window, before anything was saved, or one after a checkpoint."""
    small = {"what": "memory", "rank": 1, "update": update, "room": 3}
    code, result, errors = snugfit("train", recipe(tmp_path), *TWO, "-q", fault=small)
    assert (code, result["status"], result["updates"]) == (0, "finished", UPDATES)
    (warning,) = errors.splitlines()
    assert warning.startswith(
        "warning: rank 1: plan.micro_batch: memory ran out with 4 examples of the window's 4"
    )
    assert warning.endswith("Go on from the newest checkpoint with plan.micro_batch=2. That is done now.")
    assert_same(trained(result["run_dir"]), alone)


@pytest.mark.slow
def test_a_run_of_which_a_rank_has_no_room_for_one_row_ends_with_what_may_be_done(
    tmp_path: Path, snugfit: Callable[..., Answer]
) -> None:
    small = {"what": "memory", "rank": 1, "update": 1, "room": 0}
    code, result, _ = snugfit("train", recipe(tmp_path), *TWO, "-q", fault=small)
    assert (code, result["error"]["kind"]) == (1, "OutOfMemory")
    assert "with 1 example of the window's 4 in a micro-batch" in result["error"]["message"]
    assert "it cannot be split finer" in result["error"]["message"]


@pytest.mark.slow
def test_a_run_on_ranks_is_resumed_in_micro_batches_that_are_named(
    tmp_path: Path, snugfit: Callable[..., Answer], alone: dict[str, Any]
) -> None:
    killed = {"what": "SIGKILL", "rank": 1, "update": 6}
    snugfit("train", recipe(tmp_path), *TWO, "-q", fault=killed)
    (run,) = (tmp_path / "runs/faulty").iterdir()
    small = {"what": "memory", "rank": 0, "update": 1, "room": 1}
    code, result, errors = snugfit("resume", str(run), "--micro-batch", "1", "-q", fault=small)
    assert (code, errors, result["updates"]) == (0, "", UPDATES)
    assert_same(trained(run), alone)


@pytest.mark.slow
def test_a_run_on_ranks_is_resumed_with_each_part_of_a_window_whole_where_it_was_cut(
    tmp_path: Path, snugfit: Callable[..., Answer], alone: dict[str, Any]
) -> None:
    killed = {"what": "SIGKILL", "rank": 1, "update": 12}  # its forwards count, of which an update has two
    path = recipe(tmp_path, plan={"device": "cpu", "micro_batch": 2})
    snugfit("train", path, *TWO, "-q", fault=killed)
    (run,) = (tmp_path / "runs/faulty").iterdir()
    code, _, errors = snugfit("resume", str(run), "--micro-batch", "null", "-q")
    assert (code, errors) == (0, "")
    plans = [
        event["plan"]["micro_batch"] for event in read_events(run / "events.jsonl") if event["event"] == "run"
    ]
    assert plans[-1] is None
    assert_same(trained(run), alone)
