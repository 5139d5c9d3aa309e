"""A tracker's client in a process of its own: it may raise, die or hang, and is begun anew; nothing of it is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from snugfit.tracking.backend import Batch, Metric, RunGone
from snugfit.tracking.client_process import Client, ClientFailed, ClientProcess

CLIENT = """
import os, time
from pathlib import Path
from snugfit.tracking.backend import RunGone

class Clumsy:
    def __init__(self, folder, trouble=""):
        self.log, self.trouble = Path(folder) / "log.txt", trouble
        print("a client that prints")
    def _write(self, text):
        with self.log.open("a") as file:
            file.write(f"{text}\\n")
    def open(self, run_id, name, start_ms):
        if self.trouble == "gone":
            raise RunGone(run_id)
        self._write(f"open {run_id} {name} {start_ms} {os.nice(0) > 0} {os.getpid()}")
        return run_id or "fresh"
    def send(self, run_id, batch):
        value = batch.metrics[0].value
        if value == 13:
            raise ValueError("unlucky, password=hunter2secret")
        if value == 7:
            os._exit(3)
        if value == 60:
            time.sleep(60)
        self._write(f"send {run_id} {value}")
    def close(self):
        self._write("close")
        if self.trouble == "late":
            raise OSError("half of it is not stored")
"""


def batch(value: float) -> Batch:
    return Batch(metrics=[Metric("train/loss", value, 0, 1)])


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Client:
    (tmp_path / "clumsy.py").write_text(CLIENT)
    monkeypatch.syspath_prepend(tmp_path)
    return Client("clumsy:Clumsy", {"folder": tmp_path})


def log(folder: Path) -> list[str]:
    return (folder / "log.txt").read_text().splitlines()


def test_requests_reach_a_client_of_low_priority_until_it_is_closed(client: Client, tmp_path: Path) -> None:
    process = ClientProcess(client)
    assert process.open(None, "demo/1", 5) == "fresh"
    assert process._process is not None
    before = os.getpriority(os.PRIO_PROCESS, process._process.pid)
    process.hurry()  # as at the end of a run; who may not change it back leaves it
    after = os.getpriority(os.PRIO_PROCESS, process._process.pid)
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert before == min(19, own + 5)  # lower there is none
    assert after == (own if os.geteuid() == 0 else before)
    process.send("fresh", batch(1))
    process.close()
    process.close()
    opened, *rest = log(tmp_path)
    *words, is_low, pid = opened.split()
    assert (words, is_low) == (["open", "None", "demo/1", "5"], "True")
    assert rest == ["send fresh 1", "close"]
    assert int(pid) != os.getpid() and not Path(f"/proc/{pid}").exists()


def test_a_signal_to_the_run_is_not_for_its_client_on_windows_either(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = []

    def begin(*_: object, **settings: object) -> None:
        begun.append(settings)
        raise OSError("not begun")

    monkeypatch.setattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0x200, raising=False)
    monkeypatch.setattr(subprocess, "Popen", begin)
    with pytest.raises(OSError, match="not begun"):
        ClientProcess(client).open(None, "demo/1", 5)
    assert begun[0]["start_new_session"] and begun[0]["creationflags"] == 0x200


def test_a_client_that_dies_is_named_and_begun_anew_with_its_run(client: Client, tmp_path: Path) -> None:
    process = ClientProcess(client)
    run_id = process.open(None, "demo/1", 5)
    with pytest.raises(ClientFailed, match=r"^unlucky, password=[^h]+$"):
        process.send(run_id, batch(13))
    with pytest.raises(ClientFailed, match="ended with code 3"):
        process.send(run_id, batch(7))
    process.send(run_id, batch(8))
    process.close()
    calls = [" ".join(line.split()[:3]) for line in log(tmp_path)]
    assert calls == ["open None demo/1", "open fresh demo/1", "send fresh 8", "close"]


@pytest.mark.slow
def test_a_client_that_hangs_is_ended(client: Client) -> None:
    process = ClientProcess(client, seconds=3)
    process.open(None, "demo/1", 5)
    with pytest.raises(ClientFailed, match="did not answer within 3 s"):
        process.send("fresh", batch(60))
    process.close()


@pytest.mark.slow
def test_what_a_client_says_at_its_end_and_of_a_run_that_is_gone_is_said_here(
    tmp_path: Path, client: Client
) -> None:
    late = ClientProcess(Client(client.path, {**client.arguments, "trouble": "late"}))
    late.open(None, "demo/1", 5)
    with pytest.raises(ClientFailed, match="half of it is not stored"):
        late.close()
    gone = ClientProcess(Client(client.path, {**client.arguments, "trouble": "gone"}))
    with pytest.raises(RunGone):
        gone.open("old", "demo/1", 5)
    gone.close()
    with pytest.raises(ClientFailed, match="no module 'nowhere'"):
        ClientProcess(Client("nowhere:Client", {})).open(None, "demo/1", 5)


@pytest.mark.slow
def test_a_client_ends_its_run_when_the_process_it_serves_is_killed(client: Client, tmp_path: Path) -> None:
    script = (
        "import os, signal; from snugfit.tracking.client_process import Client, ClientProcess\n"
        f"process = ClientProcess(Client('clumsy:Clumsy', {{'folder': {str(tmp_path)!r}}}))\n"
        "process.open(None, 'demo/1', 5)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    subprocess.run([sys.executable, "-c", script], check=False, env=environment)
    until = time.monotonic() + 30
    while log(tmp_path)[-1] != "close" and time.monotonic() < until:
        time.sleep(0.05)
    assert log(tmp_path)[-1] == "close"
