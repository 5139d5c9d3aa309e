"""Windows: what only POSIX systems have is used behind a question for it, and what stands in for it there works."""

from __future__ import annotations

import ast
import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from snugfit.doctor import observe
from snugfit.system import memory, windows_memory
from snugfit.tracking.spool import Spool, read_events
from tests.unit.test_layers import imported_at_once, parsed

MODULES = {"fcntl", "grp", "posix", "pty", "pwd", "readline", "resource", "syslog", "termios", "tty"}
OF_OS = """O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK O_SYNC O_TMPFILE WNOHANG chown confstr fchmod fdatasync fork geteuid getgid
    getloadavg getpgid getpgrp getuid killpg mkfifo nice openpty posix_fadvise posix_spawn pread pwrite register_at_fork
    sched_getaffinity setpgrp setsid statvfs sync sysconf uname"""
OF_SIGNAL = """SIGALRM SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGQUIT SIGSTOP SIGTSTP SIGUSR1 SIGUSR2 SIGWINCH alarm pause setitimer"""
NAMES = {"os": set(OF_OS.split()), "signal": set(OF_SIGNAL.split())}
QUESTIONS = ("ImportError", "hasattr(", "os.name", "sys.platform")


def unguarded(tree: ast.Module) -> Iterator[str]:
    """What of POSIX a module uses in a function that asks for it by none of the questions, or in no function."""
    uses = {node: name for node in ast.walk(tree) for name in posix_names(node)}
    if not uses:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and any(question in ast.unparse(node) for question in QUESTIONS):
            uses = {use: name for use, name in uses.items() if use not in {*ast.walk(node)}}
    yield from uses.values()


def posix_names(node: ast.AST) -> Iterator[str]:
    """What of POSIX a node imports or reads."""
    if isinstance(node, ast.Import):
        yield from MODULES.intersection(each.name for each in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
        yield str(node.module)
    elif (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.attr in NAMES.get(node.value.id, ())
    ):
        yield f"{node.value.id}.{node.attr}"


def test_what_only_posix_has_is_used_behind_a_question_for_it() -> None:
    trees = parsed({*MODULES, *NAMES["os"], *NAMES["signal"]})
    used = {
        name: {*unguarded(tree), *MODULES.intersection(imported_at_once(tree))}
        for name, tree in trees.items()
    }
    assert len(trees) > 20 and {name: each for name, each in used.items() if each} == {}


@pytest.mark.parametrize(
    "code",
    ["import fcntl", "def f():\n    import resource", "def f():\n    os.killpg(1, 2)", "x = signal.SIGKILL"],
)
def test_the_question_is_missed_where_it_is_not_asked(code: str) -> None:
    assert list(unguarded(ast.parse(code)))


class Kernel32:
    """Windows' library, as far as it is called: it fills the two structures."""

    def __init__(self, tells: bool = True) -> None:
        self.tells = tells
        self.GetCurrentProcess = lambda: -1
        self.GetCurrentProcess.restype = None  # type: ignore[attr-defined]

    def K32GetProcessMemoryInfo(self, _: Any, counters: Any, size: int) -> int:
        found = counters._obj
        assert found.size == size == ctypes.sizeof(found)
        found.resident, found.peak = 3_000, 7_000
        return int(self.tells)

    def GlobalMemoryStatusEx(self, status: Any) -> int:
        found = status._obj
        assert found.size == ctypes.sizeof(found) == 64
        found.total, found.available = 16_000, 9_000
        return 1


def test_without_resource_and_proc_memory_is_as_windows_tells_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resource", None)
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setattr(ctypes, "WinDLL", lambda name: Kernel32(), raising=False)
    monkeypatch.delattr(os, "sysconf")
    cpu = torch.device("cpu")
    assert memory.peak_memory_bytes(cpu) == 7_000 and memory.memory_bytes(cpu) == 3_000
    assert memory.machine_bytes() == 16_000 and memory.available_bytes(cpu) == 9_000


def test_memory_that_windows_does_not_tell_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "WinDLL", lambda name: Kernel32(tells=False), raising=False)
    with pytest.raises(OSError, match="does not tell"):
        windows_memory.memory()


def test_events_are_written_and_torn_ones_ended_without_posix_calls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pread", "O_CLOEXEC"):
        monkeypatch.delattr(os, name)
    path = tmp_path / "events.jsonl"
    path.write_text('{"event":"run"}\n{"eve')
    with Spool(path) as spool:
        spool.append("update", update=1)
    assert [event["event"] for event in read_events(path)] == ["run", "update"]


def test_a_script_is_ended_where_there_are_no_groups_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "killpg")
    process = subprocess.Popen(["sleep", "60"])
    assert observe._end(process, "SIGTERM") != 0
