"""Runs whose processes others start: torchrun, Slurm, on one host and on two; and what becomes of processes whose launcher is killed."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from snugfit.tracking.spool import read_events
from tests.ranks import faulty
from tests.ranks.test_rank_faults import UPDATES, assert_same, recipe, trained
from tests.ranks.test_rank_faults import alone as alone

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 100.0


def started(command: Sequence[str], folder: Path, **environment: str) -> subprocess.Popen[str]:
    """A process with this environment in its folder, whose output is kept."""
    folder.mkdir(parents=True, exist_ok=True)
    return subprocess.Popen(
        command,
        cwd=folder,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)]),
            "TMPDIR": str(folder),
            **environment,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(*processes: subprocess.Popen[str]) -> list[tuple[int, str, str]]:
    """How each ended, and what it wrote; none outlives the test."""
    try:
        outputs = [process.communicate(timeout=SECONDS) for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(process.returncode, *each) for process, each in zip(processes, outputs, strict=True)]


def torchrun(path: str, *how: str) -> list[str]:
    agent = [sys.executable, "-m", "torch.distributed.run", *(how or ("--nproc-per-node", "2"))]
    return [*agent, "-m", "snugfit", "train", path, "--json", "-q"]


@pytest.mark.slow
def test_processes_of_torchrun_train_together(tmp_path: Path, alone: dict[str, Any]) -> None:
    ((code, out, err),) = ended(started(torchrun(recipe(tmp_path)), tmp_path))
    assert code == 0, err
    (result,) = map(json.loads, out.splitlines())
    assert result["updates"] == UPDATES
    assert_same(trained(result["run_dir"]), alone)


TWICE = """
import torch
from torch import nn
from torch.utils.data import TensorDataset

import snugfit as sf

rows = TensorDataset(torch.randn(8, 2, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 2)
for number in range(3):
    run = sf.train(nn.Linear(2, 2), rows, epochs=1, global_batch=4, output=f"runs{number}", track=False, device="cpu")
    assert run.status == "finished"
"""


@pytest.mark.slow
def test_processes_of_torchrun_train_one_run_after_the_other(tmp_path: Path) -> None:
    (tmp_path / "twice.py").write_text(TWICE)
    agent = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "twice.py"]
    ((code, _, err),) = ended(started(agent, tmp_path))
    assert code == 0, err
    assert [len([*tmp_path.glob(f"runs{number}/*/*")]) for number in range(3)] == [1, 1, 1]


@pytest.mark.slow
def test_a_user_error_is_said_once_under_torchrun(tmp_path: Path) -> None:
    path = recipe(tmp_path, data={"train": "tests.ranks.faulty:make_broken"})
    ((code, out, err),) = ended(started(torchrun(path), tmp_path))
    assert code == 1  # torchrun's own
    assert [json.loads(line)["error"]["kind"] for line in out.splitlines()] == ["SettingError"]
    assert err.count("error: ranks: ") == 1
    assert not list(tmp_path.glob("runs/*/*"))


def slurm(rank: int, port: int, address: str = "localhost") -> dict[str, str]:
    return {
        "SLURM_PROCID": str(rank),
        "SLURM_NTASKS": "2",
        "SLURM_LOCALID": "0",
        "SLURM_STEP_NODELIST": "node[1-2]",
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
    }


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port: int = free.getsockname()[1]
        return port


@pytest.mark.slow
def test_tasks_of_slurm_train_together(tmp_path: Path, alone: dict[str, Any]) -> None:
    command = [sys.executable, "-m", "snugfit", "train", recipe(tmp_path), "--json", "-q"]
    port = free_port()
    first, second = ended(*(started(command, tmp_path, **slurm(rank, port)) for rank in range(2)))
    assert (first[0], second[0]) == (0, 0), first[2] + second[2]
    assert second[1:] == ("", "")
    assert_same(trained(json.loads(first[1])["run_dir"]), alone)


@pytest.mark.slow
def test_hosts_with_other_recipes_refuse_to_train_together(tmp_path: Path) -> None:
    port = free_port()
    paths = [recipe(tmp_path, name="one"), ""]
    (tmp_path / "other").mkdir()
    paths[1] = recipe(tmp_path / "other", name="one", train={"seed": 1})
    commands = [[sys.executable, "-m", "snugfit", "train", path, "-q"] for path in paths]
    first, second = ended(
        *(started(command, tmp_path, **slurm(rank, port)) for rank, command in enumerate(commands))
    )
    assert (first[0], second[0]) == (2, 2)
    assert "error: ranks: 'recipe' is " in first[2]
    assert f"on {socket.gethostname()} (rank 1)" in first[2]
    assert second[2] == ""
    assert not list(tmp_path.glob("**/runs/*/*"))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with the one that started it")
def test_processes_end_with_a_launcher_that_is_killed(tmp_path: Path) -> None:
    fault = {"what": "SIGSTOP", "rank": 1, "update": 3}  # as a rank that hangs for good
    command = [sys.executable, "-m", "snugfit", "train", recipe(tmp_path), "--devices", "2", "-q"]
    launcher = started(command, tmp_path, **{faulty.FAULT: json.dumps(fault)})
    children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children")
    end = time.monotonic() + SECONDS
    while _updates(tmp_path) < 2:
        assert time.monotonic() < end
        assert launcher.poll() is None
        time.sleep(0.05)
    ranks = [int(pid) for pid in children.read_text().split()]
    assert len(ranks) >= 2
    launcher.kill()
    ended(launcher)
    while any(_runs(pid) for pid in ranks):
        assert time.monotonic() < end
        time.sleep(0.05)


def _updates(folder: Path) -> int:
    spools = list(folder.glob("runs/*/*/events.jsonl"))
    return sum(event["event"] == "update" for spool in spools for event in read_events(spool))


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


def cable(host: int) -> str:
    """The name of its end on the first or second host."""
    return f"sf{os.getpid()}{'ab'[host]}"


@contextlib.contextmanager
def two_hosts() -> Iterator[list[str]]:
    """Network namespaces of two hosts with a cable between them, by name: 10.77.0.1 and 10.77.0.2."""
    names = [f"snugfit{os.getpid()}{host}" for host in "ab"]
    cables = [cable(0), cable(1)]

    def ip(command: str) -> None:
        subprocess.run(["ip", *command.split()], check=True, capture_output=True, text=True)

    made = []
    try:
        try:
            for name in names:
                ip(f"netns add {name}")
                made.append(name)
            ip(f"link add {cables[0]} type veth peer name {cables[1]}")
            for number, (name, end) in enumerate(zip(names, cables, strict=True), start=1):
                ip(f"link set {end} netns {name}")
                ip(f"-n {name} addr add 10.77.0.{number}/24 dev {end}")
                ip(f"-n {name} link set {end} up")
                ip(f"-n {name} link set lo up")
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"no network namespaces here: {getattr(error, 'stderr', error)}")
        yield names
    finally:
        for name in made:  # what is in it goes with it
            subprocess.run(["ip", "netns", "del", name], check=True)


@pytest.mark.slow
def test_two_hosts_train_together(tmp_path: Path, alone: dict[str, Any]) -> None:
    path = recipe(tmp_path)
    with two_hosts() as hosts:
        agents = []
        for number, host in enumerate(hosts):
            meeting = ["--master-addr", "10.77.0.1", "--master-port", "29500", "--nproc-per-node", "1"]
            command = torchrun(path, "--nnodes", "2", "--node-rank", str(number), *meeting)
            # gloo would ask for the address of the host's name, which both have
            inside = ["ip", "netns", "exec", host, "env", f"GLOO_SOCKET_IFNAME={cable(number)}"]
            agents.append(started([*inside, *command], tmp_path))
        first, second = ended(*agents)
    assert (first[0], second[0]) == (0, 0), first[2] + second[2]
    assert second[1] == ""
    assert_same(trained(json.loads(first[1])["run_dir"]), alone)
