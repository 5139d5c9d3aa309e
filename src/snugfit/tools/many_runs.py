"""The base of work of many runs: the tracker's run above theirs, what shows them, and the run that was begun and not ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from snugfit.results.run_folder import RunFolder
from snugfit.run.checkpoint import checkpoint_files
from snugfit.run.events import Display
from snugfit.run.training.stop_requests import interrupts
from snugfit.tracking.cursor import stored_uri
from snugfit.tracking.follower import Tracker
from snugfit.tracking.spool import Spool
from snugfit.tracking.uri import check_uri, resolve_uri

if TYPE_CHECKING:
    from snugfit.recipe import Recipe

Tell = Callable[[str], None]
Watch = Callable[[str], AbstractContextManager[Display | None]]
"""What shows one of the runs: is given its title."""


def begun_in(home: Path) -> Path | None:
    """Return the newest run in a folder that can be gone on with."""
    begun = [
        path.parent
        for path in home.glob("*/events.jsonl")
        if checkpoint_files.any_in(path.parent / "checkpoints")
    ]
    return max(begun, key=lambda path: path.name, default=None)


class TrackedRuns:
    """Events of the whole, kept in its folder and sent from there, as those of a run are.

    `uri` is the tracker's address. The first event waits for the tracker, whose id of the whole the runs are given, and so does the
    end; both together no longer than the end of a run does.

    Args:
        kind: of the whole, such as cv.
        described: what the tracker is told of it beside the recipe.
    """

    def __init__(
        self,
        recipe: Recipe,
        folder: RunFolder,
        kind: str,
        tell: Tell,
        described: Mapping[str, Any] | None = None,
    ) -> None:
        self.uri: str | None = None
        self._tracker: Tracker | None = None
        self._recipe, self._folder, self._kind, self._tell = recipe, folder, kind, tell
        self._described = dict(described or {})

    @property
    def run_id(self) -> str | None:
        """The tracker's id of the whole; None without a tracker, or with one that has not answered yet."""
        return self._tracker.run_id if self._tracker is not None else None

    def __enter__(self) -> Self:
        track = self._recipe.track
        if track.mlflow:
            stored = stored_uri(self._folder.path)
            self.uri = resolve_uri(track.uri, self._recipe.output, stored=stored)
            check_uri(self.uri, experiment=track.experiment)
        self._spool = Spool(self._folder.events)
        self._ended = False
        described = {**self._recipe.as_dict(), **self._described}
        self.say("run", name=f"{self._recipe.name}/{self._kind}", id=self._folder.id, recipe=described)
        if self.uri is not None:
            self._tracker = Tracker(
                self._folder.path, uri=self.uri, experiment=track.experiment, say=self._tell
            )
            self._tracker.start().flush()
            if self._tracker.problem:
                self._tell(f"{self._tracker.problem} Events are kept in {self._folder.events.name}.")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if not self._ended:
            self.end("failed", str(error))
        if self._tracker is not None:
            with interrupts():
                if message := self._tracker.close().message(self._folder.path):
                    self._tell(message)
        self._spool.close()

    def end(self, status: str, reason: str | None = None) -> None:
        """Say how the whole ended."""
        self._ended = True
        self.say("end", status=status, stop_reason=reason)

    def say(self, kind: str, **fields: Any) -> None:
        """Keep an event, which is sent soon."""
        self._spool.append(kind, **fields)
