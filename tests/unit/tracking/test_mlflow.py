"""The tracker against the real MLflow: its SQLite store, and servers that are dead or never answer."""

from __future__ import annotations

import contextlib
import getpass
import json
import math
import os
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from snugfit.errors import TrackingError
from snugfit.tracking import follower
from snugfit.tracking.follower import Tracker
from snugfit.tracking.mlflow import FOLLOWER_ENVIRONMENT, MlflowBackend, environment
from snugfit.tracking.sender import replay
from snugfit.tracking.spool import Spool
from snugfit.tracking.translate import to_batch
from tests.unit.tracking.rest_server import serving
from tests.unit.tracking.tracking_fakes import finish, new_run, train

pytest.importorskip("mlflow")


def stored(uri: str, run_id: str) -> dict[str, Any]:
    """All that MLflow has of a run, read through its own client."""
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri)
    run = client.get_run(run_id)
    history = {
        name: [
            (metric.step, metric.value, metric.timestamp)
            for metric in client.get_metric_history(run_id, name)
        ]
        for name in run.data.metrics
    }
    return {"params": run.data.params, "tags": run.data.tags, "metrics": history, "status": run.info.status}


def files_of(uri: str, run_id: str | None) -> list[str]:
    from mlflow.tracking import MlflowClient

    assert run_id is not None
    return [each.path for each in MlflowClient(uri).list_artifacts(run_id)]


def runs_of(uri: str) -> list[str]:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("snugfit")
    return (
        []
        if experiment is None
        else [run.info.run_id for run in client.search_runs([experiment.experiment_id])]
    )


def in_this_process(uri: str, experiment: str) -> MlflowBackend:
    """A client that begins no process, whose import of MLflow takes seconds; the first run here has one of its own."""
    return MlflowBackend(uri, experiment)


@pytest.fixture
def silent_server() -> Iterator[str]:
    """A server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.slow
def test_the_first_use_is_quiet_and_without_telemetry(created_store: tuple[Path, str]) -> None:
    path, printed = created_store
    assert path.stat().st_size > 100_000
    assert printed == "telemetry: None\n"


def test_a_run_arrives_whole_and_its_resume_continues_it(
    tmp_path: Path, new_store: Callable[[str], str]
) -> None:
    uri = new_store("runs/mlflow.db")
    run_dir, spool = new_run(tmp_path)
    with Tracker(run_dir, uri=uri, interval_seconds=0.01) as tracker:
        train(spool, range(1, 51))
        finish(spool, 50, status="stopped", stop_reason="time")
        (run_dir / "report.html").write_text("<p>the report")
        spool.append("files", files=["report.html", "gone.html"])
        first = tracker.close()
    assert (first.unsent, first.problem, first.message(run_dir)) == (0, None, None)
    assert files_of(uri, first.run_id) == ["report.html"]
    assert first.run_id is not None
    before = stored(uri, first.run_id)
    assert (before["status"], before["tags"]["stop_reason"]) == ("KILLED", "time")
    assert [step for step, _, _ in before["metrics"]["train/loss"]] == list(range(1, 51))
    assert [value for _, value, _ in before["metrics"]["train/loss"]] == [
        1 / update for update in range(1, 51)
    ]
    assert before["metrics"]["evaluation/accuracy"][0][:2] == (50, 0.75)
    assert before["params"]["train.epochs"] == "3"
    assert before["tags"]["versions.torch"] == "2.13.0"
    assert before["tags"]["mlflow.runName"] == "demo/1"

    spool.close()
    again = Spool(run_dir / "events.jsonl")
    again.append("run", name="demo", id="1", recipe={"train": {"epochs": 5}}, plan={"micro_batch": 8})
    again.append("resume", update=50, window=50)
    with Tracker(run_dir, uri=uri, backend=in_this_process, interval_seconds=0.01) as tracker:
        train(again, range(51, 61))
        finish(again, 60)
        second = tracker.close()
    assert second.run_id == first.run_id
    assert runs_of(uri) == [first.run_id]
    after = stored(uri, first.run_id)
    assert [step for step, _, _ in after["metrics"]["train/loss"]] == list(range(1, 61))
    assert after["params"] == before["params"], (
        "MLflow refuses changed parameters; they are those of the beginning"
    )
    assert after["status"] == "FINISHED"
    assert "stop_reason" not in after["tags"]

    other = new_store("other/mlflow.db")
    result = replay(run_dir, other)
    assert (result.remaining, result.uri) == (0, other)
    assert result.run_id not in (None, first.run_id)
    assert stored(other, str(result.run_id)) == after
    assert replay(run_dir, other).sent == 0
    assert len(runs_of(other)) == 1


def test_an_event_behind_the_end_leaves_the_run_finished(
    tmp_path: Path, new_store: Callable[[str], str]
) -> None:
    uri = new_store("mlflow.db")
    run_dir, spool = new_run(tmp_path)
    train(spool, range(1, 4))
    finish(spool, 3)
    run_id = str(replay(run_dir, uri).run_id)
    spool.append("register", name="agnews", version="1", alias="champion")
    assert replay(run_dir, uri).sent == 1
    content = stored(uri, run_id)
    assert content["tags"]["registered.name"] == "agnews"
    assert content["status"] == "FINISHED"
    assert content["metrics"]["train/loss"][-1][0] == 3


def test_a_run_has_its_user_and_each_setting_of_a_technique_is_a_parameter(
    tmp_path: Path, new_store: Callable[[str], str]
) -> None:
    uri = new_store("mlflow.db")
    run_dir, _ = new_run(tmp_path, techniques=[{"ema": {"decay": 0.9}}, "mixup", {"clip_norm": 1.0}])
    content = stored(uri, str(replay(run_dir, uri).run_id))
    assert content["tags"]["mlflow.user"] == getpass.getuser()
    of_techniques = {key: value for key, value in content["params"].items() if key.startswith("techniques")}
    assert of_techniques == {
        "techniques.ema.decay": "0.9",
        "techniques.mixup": "true",
        "techniques.clip_norm": "1.0",
    }


def test_odd_names_and_non_finite_values_are_taken(tmp_path: Path, new_store: Callable[[str], str]) -> None:
    uri = new_store("mlflow.db")
    run_dir, spool = new_run(tmp_path, techniques=[{"clip": {"note": "x" * 9000}}])
    metrics = {"loss": math.nan, "recall@5": 0.5, "f1(ä)": 0.25, "a//b": 1, "norm": math.inf, "x" * 400: 2.0}
    spool.append("update", update=1, window=1, epoch=0.1, applied=False, metrics=metrics)
    spool.append("update", update=1, window=2, epoch=0.2, applied=True, metrics={"loss": 0.5})
    content = stored(uri, str(replay(run_dir, uri).run_id))
    assert [value for _, value, _ in content["metrics"]["train/loss"]] == [0.5]
    assert content["metrics"]["train/recall_at_5"][0][1] == 0.5
    assert content["tags"]["non_finite.train/loss"] == "nan at update 1"
    assert content["tags"]["non_finite.train/norm"] == "inf at update 1"
    assert not [
        value for points in content["metrics"].values() for _, value, _ in points if abs(value) > 1e300
    ]


INPUTS = [
    {"context": "train", "source": "/home/somebody/private/train.csv", "sha256": "a1" * 32},
    {"context": "validation", "source": "rows.made:held_out", "sha256": "b2" * 32},
    {
        "context": "train",
        "source": "TensorDataset",
        "sha256": "c3" * 32,
        "is_code": True,
        "rows": 12,
        "columns": ["text", "label"],
    },
]


def test_the_data_of_a_run_are_its_data_sets_without_the_folders_of_this_machine(
    new_store: Callable[[str], str],
) -> None:
    from mlflow.data.dataset_source_registry import get_dataset_source_from_json
    from mlflow.tracking import MlflowClient

    uri = new_store("mlflow.db")
    batch, malformed = to_batch(
        [{"event": "run", "time": 1.0, "name": "n", "id": "1", "recipe": {"seed": 0}, "inputs": INPUTS}]
    )
    assert malformed == 0
    backend = MlflowBackend(uri, "snugfit")
    run_id = backend.open(None, "demo/1", 0)
    for _ in range(2):  # as after a crash between sending and remembering
        backend.send(run_id, batch)
    backend.close()
    found = {
        each.dataset.name: (each.dataset.digest, [(tag.key, tag.value) for tag in each.tags])
        for each in MlflowClient(uri).get_run(run_id).inputs.dataset_inputs
    }
    assert found == {
        "train.csv": ("a1" * 16, [("mlflow.data.context", "train")]),
        "rows.made:held_out": ("b2" * 16, [("mlflow.data.context", "validation")]),
        "TensorDataset": ("c3" * 16, [("mlflow.data.context", "train")]),
    }
    profiles = {
        each.dataset.name: each.dataset.profile
        for each in MlflowClient(uri).get_run(run_id).inputs.dataset_inputs
    }
    assert json.loads(profiles["TensorDataset"] or "") == {"num_rows": 12, "columns": ["text", "label"]}
    assert not profiles["train.csv"]
    for each in MlflowClient(uri).get_run(run_id).inputs.dataset_inputs:
        assert "private" not in each.dataset.source
        source = get_dataset_source_from_json(each.dataset.source, source_type=each.dataset.source_type)
        assert each.dataset.name in source.to_json()


def test_a_server_that_knows_no_data_sets_keeps_all_else(
    monkeypatch: pytest.MonkeyPatch, new_store: Callable[[str], str]
) -> None:
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import ENDPOINT_NOT_FOUND, INTERNAL_ERROR
    from mlflow.tracking import MlflowClient

    codes = [ENDPOINT_NOT_FOUND, INTERNAL_ERROR]

    def refuse(*_: Any, **__: Any) -> None:
        raise MlflowException("no", error_code=codes.pop(0))

    monkeypatch.setattr(MlflowClient, "log_inputs", refuse)
    uri = new_store("mlflow.db")
    batch, _ = to_batch(
        [{"event": "run", "time": 1.0, "name": "n", "id": "1", "recipe": {"seed": 0}, "inputs": INPUTS}]
    )
    backend = MlflowBackend(uri, "snugfit")
    run_id = backend.open(None, "demo/1", 0)
    backend.send(run_id, batch)
    assert stored(uri, run_id)["params"]["seed"] == "0"
    with pytest.raises(MlflowException):
        backend.send(run_id, batch)
    backend.close()


def test_more_than_a_batch_can_hold_is_sent_in_parts_and_a_repetition_is_not_stored_twice(
    new_store: Callable[[str], str],
) -> None:
    uri = new_store("mlflow.db")
    metrics = {f"m{number}": float(number) for number in range(1500)}
    recipe = {f"setting{number}": number for number in range(150)}
    versions = {f"package{number}": "1" for number in range(150)}
    events = [
        {"event": "run", "time": 1.0, "recipe": recipe, "versions": versions},
        {"event": "update", "time": 2.0, "update": 1, "metrics": metrics},
    ]
    batch, malformed = to_batch(events)
    assert malformed == 0
    backend = MlflowBackend(uri, "snugfit")
    try:
        run_id = backend.open(None, "big", 1000)
        for _ in range(2):
            backend.send(run_id, batch)
            with contextlib.closing(sqlite3.connect(uri.removeprefix("sqlite:///"))) as database:
                for table, where, count in [
                    ("metrics", "1", 1500),
                    ("params", "1", 150),
                    ("tags", "key like 'versions.%'", 150),
                ]:
                    query = f"select count(*) from {table} where run_uuid = ? and {where}"
                    assert database.execute(query, [run_id]).fetchone() == (count,), table
    finally:
        backend.close()


def test_a_run_deleted_in_mlflow_is_begun_anew(tmp_path: Path, new_store: Callable[[str], str]) -> None:
    from mlflow.tracking import MlflowClient

    uri = new_store("mlflow.db")
    run_dir, spool = new_run(tmp_path)
    train(spool, range(1, 6))
    first = replay(run_dir, uri).run_id
    MlflowClient(uri).delete_run(first)
    train(spool, range(6, 11))
    second = replay(run_dir, uri).run_id
    assert second != first
    assert [step for step, _, _ in stored(uri, str(second))["metrics"]["train/loss"]] == list(range(1, 11))


def test_a_deleted_experiment_is_said_by_name(tmp_path: Path, new_store: Callable[[str], str]) -> None:
    from mlflow.tracking import MlflowClient

    uri = new_store("mlflow.db")
    client = MlflowClient(uri)
    client.delete_experiment(client.create_experiment("snugfit"))
    run_dir, spool = new_run(tmp_path)
    train(spool, range(1, 6))
    with pytest.raises(TrackingError, match=r"track\.experiment: 'snugfit' has been deleted"):
        replay(run_dir, uri)


def test_a_server_that_refuses_half_of_the_requests_gets_everything_and_nothing_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(follower, "FIRST_BACKOFF_SECONDS", 0.01)
    run_dir, spool = new_run(tmp_path)
    with serving() as (server, uri):
        tracker = Tracker(run_dir, uri=uri, backend=in_this_process, interval_seconds=0.01).start()
        for start in range(1, 61, 20):
            train(spool, range(start, start + 20))
            while tracker.flush(timeout=60).unsent:
                assert server.requests < 200, tracker.problem
        finish(spool, 60)
        while tracker.flush(timeout=60).unsent:
            assert server.requests < 200, tracker.problem
        result = tracker.close(timeout=60)
    assert (result.run_id, result.unsent, result.problem) == ("abc", 0, None)
    assert server.refusals >= 5
    assert server.runs_created == 1
    assert sorted(set(server.steps)) == list(range(1, 61))
    assert server.statuses[-1] == "FINISHED"
    assert capfd.readouterr() == ("", "")


def test_nothing_listens_at_the_address(tmp_path: Path) -> None:
    run_dir, spool = new_run(tmp_path)
    tracker = Tracker(
        run_dir, uri="http://127.0.0.1:9", backend=in_this_process, interval_seconds=0.01
    ).start()
    train(spool, range(1, 11))
    result = tracker.close(timeout=60)
    assert not tracker._thread.is_alive(), "it gives up when the server refuses, not when the time is over"
    assert (result.sent, result.unsent, result.run_id) == (0, 11, None)
    assert "refused" in (result.problem or "")
    with pytest.raises(TrackingError, match="still to send: 11"):
        replay(run_dir, "http://127.0.0.1:9")


def test_a_server_that_never_answers_is_waited_for_as_long_as_is_said(
    tmp_path: Path, silent_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    run_dir, spool = new_run(tmp_path)
    tracker = Tracker(run_dir, uri=silent_server, backend=in_this_process, interval_seconds=0.01).start()
    train(spool, range(1, 11))
    result = tracker.close(timeout=0.2)
    assert tracker._thread.is_alive(), "the server still has the thread, but not the caller"
    assert (result.unsent, result.problem) == (11, "no answer within 0.2 s")
    tracker._thread.join(60)
    assert not tracker._thread.is_alive(), "a request ends by itself"


FOLLOWED = """
import sys
import torch
import snugfit as sf

data = torch.utils.data.TensorDataset(torch.randn(32, 2), torch.randint(0, 2, (32,)))
result = sf.train(torch.nn.Linear(2, 2), data, epochs=1, global_batch=8, device="cpu", track_uri=sys.argv[1], display=None)
print(result.tracker_run_id, "mlflow" in sys.modules)
"""


@pytest.mark.slow
def test_a_run_is_followed_without_mlflow_in_its_process_and_its_report_is_kept_with_it(
    tmp_path: Path, new_store: Callable[[str], str]
) -> None:
    uri = new_store("mlflow.db")
    done = subprocess.run(
        [sys.executable, "-c", FOLLOWED, uri], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    run_id, imported = done.stdout.split()
    assert imported == "False"
    assert stored(uri, run_id)["status"] == "FINISHED"
    assert files_of(uri, run_id) == ["report.html"]


def test_files_that_cannot_be_stored_are_said_and_the_rest_arrives(
    tmp_path: Path, new_store: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.tracking import MlflowClient

    def refuse(*_: object) -> None:
        raise OSError("the bucket is not yours")

    monkeypatch.setattr(MlflowClient, "log_artifact", refuse)
    uri = new_store("mlflow.db")
    (tmp_path / "report.html").write_text("<p>")
    backend = MlflowBackend(uri, "snugfit", tmp_path)
    batch, _ = to_batch(
        [
            {"event": "files", "time": 1.0, "files": ["report.html"]},
            {"event": "update", "time": 2.0, "update": 1, "metrics": {"loss": 0.5}},
        ]
    )
    run_id = backend.open(None, "demo/1", 0)
    backend.send(run_id, batch)
    with pytest.raises(TrackingError, match=r"report\.html cannot be stored: the bucket is not yours"):
        backend.close()
    assert stored(uri, run_id)["metrics"]["train/loss"][0][1] == 0.5


def test_what_the_user_has_set_stays_and_what_was_set_is_taken_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "77")
    monkeypatch.delenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", raising=False)
    with environment(FOLLOWER_ENVIRONMENT):
        inner = environment(FOLLOWER_ENVIRONMENT)
        inner.__enter__()
        assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "77"
        assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "0"
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "0", "another follower still needs it"
    inner.__exit__(None, None, None)
    assert "MLFLOW_HTTP_REQUEST_MAX_RETRIES" not in os.environ
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "77"


@pytest.mark.skipif(sys.platform == "win32", reason="it has no such locks")
def test_one_run_at_a_time_makes_the_tables_of_a_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fcntl

    seen: list[bool] = []

    def is_locked() -> bool:
        descriptor = os.open(tmp_path, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    class Client:
        """A client that says whether the folder is another's while it is asked for the first time."""

        def __init__(self, **_: Any) -> None:
            seen.append(is_locked())

        def search_experiments(self, **_: Any) -> None:
            seen.append(is_locked())

        def get_run(self, _run_id: str) -> Any:
            seen.append(is_locked())
            return SimpleNamespace(info=SimpleNamespace(lifecycle_stage="active"))

    monkeypatch.setattr("mlflow.tracking.MlflowClient", Client)
    backend = MlflowBackend(f"sqlite:///{tmp_path}/mlflow.db", "snugfit")
    try:
        assert backend.open("a run", "name", 0) == "a run"
    finally:
        backend.close()
    assert seen == [True, True, False]
