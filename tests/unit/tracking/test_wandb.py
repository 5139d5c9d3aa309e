"""W&B as a tracker, offline: its own records hold a run's numbers, settings and end; the same run goes on; no process is left."""

from __future__ import annotations

import importlib.util
import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import snugfit as sf
from snugfit.errors import MissingExtra
from snugfit.tracking.cursor import Cursors
from snugfit.tracking.sender import replay
from snugfit.tracking.wandb import NAME, WandbBackend
from tests.unit.tracking.tracking_fakes import finish, new_run, train
from tests.unit.tracking.wandb_server import wandb_server

pytest.importorskip("wandb", reason="wandb is not installed: pip install 'snugfit[wandb]'")

BLOCK, HEADER = 32768, 7
WHOLE, LAST = 1, 4


@pytest.fixture(autouse=True)
def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")


def records(run_dir: Path) -> list[list[Any]]:
    """W&B's own records of a run, by file in the order they were begun."""
    return [list(_read(path)) for path in sorted((run_dir / NAME).glob("offline-run-*/run-*.wandb"))]


def _read(path: Path) -> Iterator[Any]:
    """The records of W&B's log: in blocks, each part with its checksum, length and kind, as LevelDB writes it."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, position, parts = path.read_bytes(), HEADER, b""
    assert content.startswith(b":W&B")
    while position + HEADER <= len(content):
        if BLOCK - position % BLOCK < HEADER:
            position += BLOCK - position % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", content[position : position + HEADER])
        parts += content[position + HEADER : position + HEADER + length]
        position += HEADER + length
        if kind in (WHOLE, LAST):
            record = Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


def points(file: list[Any], name: str = "train/loss") -> list[tuple[int, float]]:
    rows = [_items(each.history.item) for each in file if each.WhichOneof("record_type") == "history"]
    return [(row["_step"], row[name]) for row in rows if name in row]


def summary(file: list[Any]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for each in file:
        if each.WhichOneof("record_type") == "summary":
            merged |= _items(each.summary.update)
            for item in each.summary.remove:
                merged.pop("/".join(item.nested_key) or item.key, None)
    return merged


def settings(file: list[Any]) -> dict[str, Any]:
    changes = [each.config for each in file if each.WhichOneof("record_type") == "config"]
    return {item.key: json.loads(item.value_json) for change in changes for item in change.update}


def begun(file: list[Any]) -> Any:
    return next(each.run for each in file if each.WhichOneof("record_type") == "run")


def exit_codes(file: list[Any]) -> list[int]:
    return [each.exit.exit_code for each in file if each.WhichOneof("record_type") == "exit"]


def _items(items: Any) -> dict[str, Any]:
    return {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}


def processes_of_wandb() -> set[str]:
    """Return those that this worker of the tests has started; others may be at tests of this file."""
    if not Path("/proc").is_dir():
        return set()
    own = f"PYTEST_XDIST_WORKER={os.environ.get('PYTEST_XDIST_WORKER', '')}"
    lines = (path for path in Path("/proc").glob("[0-9]*/cmdline"))
    return {
        path.parent.name
        for path in lines
        if ("wandb-core" in _text(path) or "client_process" in _text(path))
        and (own.endswith("=") or own in _text(path.with_name("environ")).split("\0"))
    }


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:  # it has ended
        return ""


@pytest.mark.slow
def test_a_run_is_in_wandbs_records_and_goes_on_as_the_same_run(tmp_path: Path) -> None:
    before = processes_of_wandb()
    run_dir, spool = new_run(tmp_path)
    train(spool, range(1, 11))
    result = replay(run_dir, NAME)
    assert result.remaining == 0 and result.uri == NAME
    train(spool, range(11, 21))
    finish(spool, 20)
    assert replay(run_dir, NAME).run_id == result.run_id
    first, second = records(run_dir)
    assert begun(first).run_id == begun(second).run_id == result.run_id
    assert (begun(first).project, begun(first).display_name, begun(first).run_group) == (
        "snugfit",
        "demo/1",
        "demo",
    )
    assert [step for step, _ in points(first)] == list(range(1, 11))
    assert [step for step, _ in points(second)] == list(range(11, 21))
    assert [value for _, value in points(first)] == pytest.approx([1 / update for update in range(1, 11)])
    assert points(second, "evaluation/accuracy") == [(20, 0.75)]
    assert settings(first)["train.epochs"] == 3 and settings(first)["plan.micro_batch"] == 16
    assert summary(second)["snugfit.status"] == "finished" and summary(second)["best/accuracy"] == 0.75
    assert (exit_codes(first), exit_codes(second)) == ([1], [0])
    assert processes_of_wandb() <= before
    assert replay(run_dir, NAME).sent == 0 and len(records(run_dir)) == 2


@pytest.mark.slow
def test_points_that_come_again_are_left_out_and_the_best_is_in_the_summary(tmp_path: Path) -> None:
    run_dir, spool = new_run(tmp_path)
    train(spool, range(1, 6))
    finish(spool, 3, status="stopped", stop_reason="time")
    spool.append("resume", update=3, window=3)
    train(spool, range(4, 9))
    finish(spool, 8)
    end = {"update": 2, "metrics": {"accuracy": 0.9}}
    spool.append("end", status="finished", stop_reason=None, updates=8, epochs=1, best=end, seconds=1)
    replay(run_dir, NAME)
    (file,) = records(run_dir)
    assert [step for step, _ in points(file)] == list(range(1, 9))
    assert summary(file)["best/accuracy"] == 0.9 and "stop_reason" not in summary(file)


@pytest.mark.slow
def test_a_run_goes_to_wandb_beside_others_with_its_process_measured(tmp_path: Path) -> None:
    before = processes_of_wandb()
    data = TensorDataset(torch.randn(32, 2), torch.randint(0, 2, (32,)))
    given: dict[str, Any] = {
        "global_batch": 8,
        "device": "cpu",
        "output": tmp_path,
        "track": ["tensorboard", NAME],
    }
    result = sf.train(nn.Linear(2, 2), data, epochs=2, **given)
    run_dir = Path(result.run_dir)
    (file,) = records(run_dir)
    assert [step for step, _ in points(file)] == list(range(1, 9))
    assert exit_codes(file) == [0] and (run_dir / "tensorboard.json").is_file()
    measured = [item.key for each in file for item in each.stats.item]
    assert any(key.startswith("proc.memory") for key in measured), measured
    assert processes_of_wandb() <= before


@pytest.mark.slow
def test_a_server_gets_the_run_once_and_its_resume_goes_on_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    run_dir, spool = new_run(tmp_path)
    with wandb_server() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.address)
        train(spool, range(1, 11))
        first = replay(run_dir, NAME)
        train(spool, range(11, 21))
        finish(spool, 20)
        assert replay(run_dir, NAME).run_id == first.run_id
    assert set(server.names) == {first.run_id}
    assert [row["_step"] for row in server.rows] == list(range(1, 21)) and 10 in server.offsets
    assert [row["train/loss"] for row in server.rows] == pytest.approx([1 / step for step in range(1, 21)])
    assert server.summary["snugfit.status"] == "finished" and server.exit_codes == [1, 0]


@pytest.mark.slow
def test_without_an_account_the_run_ends_well_and_its_events_are_sent_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    data = TensorDataset(torch.randn(32, 2), torch.randint(0, 2, (32,)))
    result = sf.train(
        nn.Linear(2, 2),
        data,
        epochs=1,
        global_batch=8,
        device="cpu",
        output=tmp_path,
        track=["tensorboard", NAME],
    )
    said = " ".join(capsys.readouterr().err.split())
    assert result.status == "finished" and "No API key configured" in said
    assert f"snugfit track replay {result.run_dir} --uri wandb" in said
    run_dir = Path(result.run_dir)
    sent = Cursors(run_dir, "tensorboard").get("tensorboard")
    assert sent is not None and sent.offset > 0
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert replay(run_dir, NAME).remaining == 0
    assert [step for step, _ in points(records(run_dir)[-1])] == list(range(1, 5))


@pytest.mark.slow
def test_wandbs_processes_end_when_the_run_is_killed_and_its_points_are_stored(tmp_path: Path) -> None:
    before = processes_of_wandb()
    script = (
        "import os, signal, time, torch, snugfit as sf\n"
        "from pathlib import Path\n"
        "from snugfit.tracking.cursor import Cursors\n"
        "from torch.utils.data import TensorDataset\n"
        "updates = []\n"
        "def end(result):\n"
        "    updates.append(result)\n"
        "    if len(updates) < 6: return\n"
        f"    (run_dir,) = Path({str(tmp_path)!r}).glob('run/*')\n"
        "    while not Cursors(run_dir, 'wandb').get('wandb').offset: time.sleep(0.1)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "data = TensorDataset(torch.randn(32, 2), torch.randint(0, 2, (32,)))\n"
        "sf.train(torch.nn.Linear(2, 2), data, epochs=2, global_batch=8, device='cpu', display=None, track='wandb',\n"
        f"    output={str(tmp_path)!r}, on_update=end)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == -9, done.stderr
    until = time.monotonic() + 30
    while processes_of_wandb() - before and time.monotonic() < until:
        time.sleep(0.1)
    assert processes_of_wandb() <= before
    (run_dir,) = (tmp_path / "run").iterdir()
    (file,) = records(run_dir)
    assert points(file) and exit_codes(file) == [1]


def test_a_run_that_was_deleted_in_wandb_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    from snugfit.tracking.backend import RunGone

    def refuse(**_: Any) -> None:
        raise wandb.errors.CommError("run p/abc was previously created and deleted; try a new run name")

    monkeypatch.setattr(wandb, "init", refuse)
    with pytest.raises(RunGone):
        WandbBackend(tmp_path, "p").open("abc", "demo/1", 0)


def test_without_wandb_a_run_that_asks_for_it_does_not_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name == NAME else there(name, *more)
    )
    data = TensorDataset(torch.randn(8, 2), torch.randint(0, 2, (8,)))
    with pytest.raises(MissingExtra, match=r"snugfit\[wandb\]"):
        sf.train(nn.Linear(2, 2), data, track="wandb", output=tmp_path)
    assert not list(tmp_path.iterdir())
    assert os.environ["WANDB_MODE"] == "offline"
