"""Processes that stay: each is a rank of one gloo group, and runs the functions that it is sent."""

from __future__ import annotations

import faulthandler
import io
import sys
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.ranks.forked import forking

START_SECONDS = 300.0
"""For processes to start and to import the function's module, which a busy machine takes long for."""
SECONDS = 60.0
"""For the function, from when all ranks have imported it."""
PATIENCE = 5.0
_IMPORTED = "imported"


class Ranks:
    """`run(function, *args)` calls a function of a module on every rank, and gives what each returned.

    Ranks that do not answer are ended, and begun anew for the next function.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._ends: list[Connection] = []
        self._processes: list[Any] = []

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """What the function returned on each rank.

        Raises:
            AssertionError: it failed on one of them, with its traceback, or did not return.
        """
        if not self._processes:
            self._begin()
        for end in self._ends:
            end.send((function, args))
        answers: list[tuple[bool, Any] | None] = []
        patience = SECONDS if all(map(_has_imported, self._ends)) else PATIENCE
        for end, process in zip(self._ends, self._processes, strict=True):
            try:
                answers.append(_received(end) if end.poll(patience) else None)
            except (EOFError, ConnectionError):
                process.join(PATIENCE)
                answers.append((False, f"the process has ended, with exit code {process.exitcode}"))
            if answers[-1] is None or not answers[-1][0]:
                patience = PATIENCE  # the others may wait for it
        if any(answer is None or not answer[0] for answer in answers):
            self.end()
            messages = [
                f"rank {rank}: {'did not return' if answer is None else answer[1]}"
                for rank, answer in enumerate(answers)
                if answer is None or not answer[0]
            ]
            raise AssertionError("\n".join(messages))
        return [answer[1] for answer in answers if answer is not None]

    def end(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
            process.join()
        self._processes, self._ends = [], []

    def _begin(self) -> None:
        context = forking()
        meeting = Path(tempfile.mkdtemp(), "meeting")
        for rank in range(self.count):
            end, other = context.Pipe()
            process = context.Process(target=_rank, args=(other, rank, self.count, meeting), daemon=True)
            process.start()
            self._ends.append(end)
            self._processes.append(process)


def _has_imported(end: Connection) -> bool:
    """Whether the rank has come to begin the function; False where it has ended, or hangs before."""
    try:
        return end.poll(START_SECONDS) and end.recv() == _IMPORTED
    except EOFError:
        return False


def _rank(end: Connection, rank: int, count: int, meeting: Path) -> None:
    faulthandler.enable(sys.__stderr__)  # a crash in torch says where it was
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=count)
    while True:
        function, args = end.recv()
        end.send(_IMPORTED)
        try:
            _send(end, (True, function(*args)))
        except BaseException:  # noqa: BLE001 - whatever it was, it is told
            _send(end, (False, traceback.format_exc()))


def _send(end: Connection, answer: tuple[bool, Any]) -> None:
    """Send all tensors of an answer as one message: `Connection.send` opens shared memory, and a socket to pass it on by, for each."""
    message = io.BytesIO()
    # the older format, which is many times as fast where there are hundreds of small ones
    torch.save(answer, message, _use_new_zipfile_serialization=False)
    end.send_bytes(message.getbuffer())


def _received(end: Connection) -> Any:
    return torch.load(io.BytesIO(end.recv_bytes()), weights_only=False)
