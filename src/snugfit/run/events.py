"""The events of a run, and whether any of them is worth keeping its folder for."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, Protocol

from snugfit.errors import RunFolderError, UserError
from snugfit.report.story import Story, read_story, story_of
from snugfit.results.run_folder import RunFolder
from snugfit.strategies.base import Strategy
from snugfit.strategies.process_group import agreed
from snugfit.system.messages import own_warnings
from snugfit.system.processes import this_world
from snugfit.tracking.spool import Event, Spool, read_events, worked_seconds

Display = Callable[[dict[str, Any]], None]
"""Sees every event of the spool; changes nothing."""


class Emit(Protocol):
    """The receivers of a run's events: the spool and the screen."""

    def __call__(self, kind: str, /, **fields: Any) -> None: ...


_BEGINNING = ("update", "skipped", "resume", "evaluation", "checkpoint")
"""Events of a run that has done something."""


def has_begun(folder: RunFolder) -> bool:
    """Return whether a run has done something in its folder, or left something there that is worth more than its events."""
    if _has_left(folder):
        return True
    return folder.events.exists() and any(
        event["event"] in _BEGINNING for event in read_events(folder.events)
    )


def _has_left(folder: RunFolder) -> bool:
    return folder.has_checkpoints or folder.best.exists()


def goes_on(folder: RunFolder, strategy: Strategy) -> bool:
    """Return whether a run that is resumed has a checkpoint to go on from, the same on all ranks; without one it starts again.

    Raises:
        RunFolderError: it is no run's folder, or the checkpoints that it had are gone.
    """
    with agreed():
        begun = folder.has_checkpoints
        if not begun:
            _check_starts_again(folder)
    return any(strategy.counts(int(begun)))


def _check_starts_again(folder: RunFolder) -> None:
    events = read_events(folder.events, raw=True) if folder.events.exists() else []
    kinds = {event["event"] for event in events}
    if "checkpoint" in kinds:
        raise RunFolderError(
            folder.path,
            f"the run has saved checkpoints, and {folder.checkpoints.name}/ has none of them",
            "Put them back, or start a new run with snugfit train.",
        )
    if "run" not in kinds and not (folder.path / "plan.json").exists():
        raise RunFolderError(
            folder.path,
            "not a run's folder: no run has begun in it",
            "Give <output>/<name>/<id>, or start one with snugfit train.",
        )


DOING = "doing"
"""What a run does from now on, for whoever watches: shown, and not kept."""

AGAIN = "no checkpoint was saved before this run ended: it starts again from its beginning."


def displayed(wish: Display | Literal["auto"] | None) -> AbstractContextManager[Display | None]:
    """Return the display that is asked for, of the process that speaks for the run."""
    if wish != "auto":
        return nullcontext(wish)
    if not this_world().leads:
        return nullcontext(None)
    from snugfit.display.notebook import display_here

    return display_here()


_MOST_UPDATES = 20_000
"""Events of updates that a run without a folder keeps; the oldest go first."""


class _InMemory:
    """The events of a run that writes nothing."""

    problem: str | None = None

    def __init__(self) -> None:
        self._updates: deque[tuple[int, Event]] = deque(maxlen=_MOST_UPDATES)
        self._others: list[tuple[int, Event]] = []
        self._count = 0

    def append(self, kind: str, /, **fields: Any) -> Event:
        """Take one event, and return it."""
        event = {"event": kind, "time": time.time(), **fields}
        (self._updates if kind == "update" else self._others).append((self._count, event))
        self._count += 1
        return event

    def read(self) -> list[Event]:
        """Return the events in their order."""
        return [event for _, event in sorted((*self._updates, *self._others), key=lambda each: each[0])]

    def close(self) -> None:
        """Nothing is to be flushed."""


class Events:
    """The one outlet of a run: each event goes to the spool, then to the screen; what is done now to the screen alone."""

    def __init__(self, folder: RunFolder | None, display: Display | None) -> None:
        self._folder = folder
        self._spool: Spool | _InMemory = _InMemory() if folder is None else Spool(folder.events)
        self._display = display
        self._problem_shown = False  # that events cannot be written
        self.begun = False

    def __call__(self, kind: str, /, **fields: Any) -> None:
        if kind == DOING:
            self._show({"event": kind, **fields})
            return
        self.begun = self.begun or kind in _BEGINNING
        self._show(self._spool.append(kind, **fields))
        failed = self._spool.problem is not None
        if failed and not self._problem_shown and self._folder is not None:
            self._problem_shown = True
            self(
                "warning",
                message=f"{self._folder.events}: events cannot be written: {self._spool.problem}. The run goes on; they are kept in memory and "
                "written as soon as that works.",
            )
        self._problem_shown = failed

    def story(self) -> Story:
        """Return the run so far, put in order.

        Raises:
            RunFolderError: its events cannot be read.
        """
        if isinstance(self._spool, _InMemory):
            events = self._spool.read()
            return story_of(events, "run", "", worked_seconds(events))
        assert self._folder is not None
        return read_story(self._folder.path)

    def _show(self, event: dict[str, Any]) -> None:
        if self._display is not None:
            self._display(event)

    def close(self) -> None:
        """Flush the events; what cannot be written is said, as the run is what it is without them."""
        try:
            self._spool.close()
        except RunFolderError as error:
            self._show({"event": "warning", "time": time.time(), "message": str(error)})


class Silent(Events):
    """The events of a process that another one speaks for."""

    def __init__(self) -> None:
        """Begin without a folder to write into."""

    def __call__(self, kind: str, /, **fields: Any) -> None:
        """There is nobody to tell."""

    def close(self) -> None:
        """There is nothing to close."""


def warnings_as_events(emit: Callable[..., None]) -> AbstractContextManager[None]:
    """Temporarily make each `SnugfitWarning` an event, said once; other warnings go where they went."""
    return own_warnings(lambda message: emit("warning", message=message))


@contextmanager
def opened(folder: RunFolder | None, display: Display | None) -> Iterator[Events]:
    """Yield the events of a run, for this process alone; without a folder they are in memory.

    On an error, a folder that this process has made and in which no run has begun is removed, and so is one
    whose run could not use its first window.

    Raises:
        RunFolderError: another process is training it, or its events cannot be written.
    """
    if folder is None:
        yield Events(None, display)
        return
    with folder.claimed():
        events = Events(folder, display)
        try:
            yield events
        except BaseException as error:
            # an empty spool beside a checkpoint is a run whose events were lost with the power, not one to remove
            mistaken = isinstance(error, UserError) and not events.begun
            if (folder.events.stat().st_size == 0 or mistaken) and not _has_left(folder):
                folder.discard()
            raise
        finally:
            events.close()
