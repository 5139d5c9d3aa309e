"""Rivals that take turns on one device: each update of one is followed by those of the others, so that all meet the same clocks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from checks import last_lines, spread, wait


class Rival(Protocol):
    """Something that trains, a few updates at a time."""

    def turn(self, updates: int) -> None:
        """Make so many updates."""

    def end(self) -> None:
        """Let go of everything."""


@dataclass
class Loop:
    """A rival whose updates are calls of a function."""

    update: Callable[[], Any]

    def turn(self, updates: int) -> None:
        for _ in range(updates):
            self.update()

    def end(self) -> None:
        del self.update


class Threaded:
    """A rival that has a loop of its own: it runs in a thread, and waits at each of its updates for its turn.

    Args:
        train: runs the loop, and calls what it is given after each update; that raises `Ended` once there is no further turn.
    """

    def __init__(self, train: Callable[[Callable[[], None]], Any]) -> None:
        self._go, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._ended = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(train,), daemon=True)
        self._thread.start()

    def turn(self, updates: int) -> None:
        for _ in range(updates):
            self._go.release()
            self._done.acquire()
            if self._error is not None:
                raise RuntimeError(f"the loop ended: {self._error!r}") from self._error

    def end(self) -> None:
        self._ended = True
        self._go.release()
        self._thread.join(30)

    def _run(self, train: Callable[[Callable[[], None]], Any]) -> None:
        first = True

        def after_update() -> None:
            nonlocal first
            first = False
            self._done.release()
            self._go.acquire()
            if self._ended:
                raise Ended

        self._go.acquire()
        try:
            if not self._ended:
                train(after_update)
            if not self._ended:
                self._error = RuntimeError("it made all of its updates")
        except BaseException as error:  # noqa: BLE001 (whose turn it is raises it)
            self._error = error
        finally:
            self._done.release()


class Ended(BaseException):
    """Raised in a rival's loop when there is no further turn; no framework catches it for a failure of its own."""


@dataclass
class Measured:
    """The result of one rival's turns."""

    resident: int = 0
    above: int = 0
    seconds: list[float] = field(default_factory=list)
    error: str | None = None

    def figures(self, tokens: int, cuda: bool) -> dict[str, Any]:
        if self.error is not None:
            return {"error": self.error}
        figures: dict[str, Any] = {"seconds_per_update": spread(self.seconds)}
        figures["tokens_per_second"] = round(tokens / figures["seconds_per_update"]["median"], 1)
        if cuda:
            figures["peak_allocated_bytes"] = self.resident + self.above
        return figures


def in_turns(
    makers: Mapping[str, Callable[[], Rival]],
    device: str,
    *,
    tokens: int,
    warm: int = 2,
    repeats: int = 5,
    updates: int = 2,
    note: Callable[[Mapping[str, Any]], None] = lambda figures: None,
) -> dict[str, dict[str, Any]]:
    """Let rivals take turns: tokens per second by the median of the turns, their spread, and each one's own peak of memory.

    What one has resident is what its making and first updates left allocated; its peak is that and what its turns took above it.

    Args:
        tokens: of an update.
    """
    tallies = {name: Measured() for name in makers}
    rivals: dict[str, Rival] = {}
    cuda = device == "cuda"
    for name, make in makers.items():
        before = allocated(cuda)
        try:
            rivals[name] = make()
            rivals[name].turn(warm)
            wait(device)
            tallies[name].resident = allocated(cuda) - before
        except Exception as error:  # noqa: BLE001 (the others are to be seen)
            tallies[name].error = last_lines(error)
            rivals.pop(name, None)
        note({each: row.figures(tokens, cuda) for each, row in tallies.items() if row.error})
    for repeat in range(repeats):
        order = list(rivals) if repeat % 2 == 0 else list(reversed(rivals))
        for name in order:
            if tallies[name].error is None:
                _turn(rivals[name], tallies[name], device, updates)
        note({name: row.figures(tokens, cuda) for name, row in tallies.items() if row.seconds or row.error})
    for rival in rivals.values():
        rival.end()
    return {name: row.figures(tokens, cuda) for name, row in tallies.items()}


def _turn(rival: Rival, row: Measured, device: str, updates: int) -> None:
    cuda = device == "cuda"
    wait(device)
    before = allocated(cuda)
    if cuda:
        import torch

        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    try:
        rival.turn(updates)
        wait(device)
    except Exception as error:  # noqa: BLE001 (the others are to be seen)
        row.error = last_lines(error)
        return
    row.seconds.append((time.perf_counter() - began) / updates)
    if cuda:
        row.above = max(row.above, torch.cuda.max_memory_allocated() - before)


def allocated(cuda: bool) -> int:
    if not cuda:
        return 0
    import torch

    return torch.cuda.memory_allocated()
