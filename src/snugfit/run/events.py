"""The events of a run, and whether any of them is worth keeping its folder for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from snugfit.errors import RunFolderError, UserError
from snugfit.results.run_folder import RunFolder
from snugfit.run.checkpoint import checkpoint_files
from snugfit.strategies.agreement import agreed
from snugfit.strategies.base import Strategy
from snugfit.tracking.spool import Spool, read_events

Display = Callable[[dict[str, Any]], None]
"""Sees every event of the spool; changes nothing."""


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
    return checkpoint_files.any_in(folder.checkpoints) or folder.best.exists()


def goes_on(folder: RunFolder, strategy: Strategy) -> bool:
    """Return whether a run that is resumed has a checkpoint to go on from, the same on all ranks; without one it starts again.

    Raises:
        RunFolderError: it is no run's folder, or the checkpoints that it had are gone.
    """
    with agreed():
        begun = checkpoint_files.any_in(folder.checkpoints)
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


class Events:
    """The one outlet of a run: each event goes to the spool, then to the screen; what is done now to the screen alone."""

    def __init__(self, folder: RunFolder, display: Display | None) -> None:
        self._spool = Spool(folder.events)
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
        if failed and not self._problem_shown:
            self._problem_shown = True
            self(
                "warning",
                message=f"{self._spool.path}: events cannot be written: {self._spool.problem}. The run goes on; they are kept in memory and "
                "written as soon as that works.",
            )
        self._problem_shown = failed

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


@contextmanager
def opened(folder: RunFolder, display: Display | None) -> Iterator[Events]:
    """Yield the events of a run, for this process alone.

    On an error, a folder that this process has made and in which no run has begun is removed, and so is one
    whose run could not use its first window.

    Raises:
        RunFolderError: another process is training it, or its events cannot be written.
    """
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
