"""What work of many runs shares: the tracker's run above theirs, what shows them, and the run that was begun and not ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from snugfit.errors import MissingExtra, TrackingError
from snugfit.events import Display
from snugfit.tracking.cursor import stored_uri
from snugfit.tracking.spool import Spool
from snugfit.tracking.uri import check_uri, resolve_uri
from snugfit.training import checkpoint
from snugfit.training.folder import RunFolder

if TYPE_CHECKING:
    from snugfit.recipe import Recipe

Tell = Callable[[str], None]
Watch = Callable[[str], AbstractContextManager[Display | None]]
"""What shows one of the runs: is given its title."""


def begun_in(home: Path) -> Path | None:
    """The newest run in a folder that can be gone on with."""
    begun = [
        path.parent for path in home.glob("*/events.jsonl") if checkpoint.any_in(path.parent / "checkpoints")
    ]
    return max(begun, key=lambda path: path.name, default=None)


class TrackedRuns:
    """Events of the whole, kept in its folder and sent from there; what could not be sent goes with what follows.

    `uri` is the tracker's address and `run_id` the run there, None without a tracker, or one that has not answered yet.

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
        self.run_id: str | None = None
        self._recipe, self._folder, self._kind, self._tell = recipe, folder, kind, tell
        self._described = dict(described or {})

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
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if not self._ended:
            self.end("failed", str(error))
        self._spool.close()

    def end(self, status: str, reason: str | None = None) -> None:
        """Say how the whole ended."""
        self._ended = True
        self.say("end", status=status, stop_reason=reason)

    def say(self, kind: str, **fields: Any) -> None:
        """Keep an event, and send it."""
        self._spool.append(kind, **fields)
        if self.uri is None:
            return
        from snugfit.tracking.sender import replay  # imports MLflow

        try:
            self.run_id = replay(self._folder.path, self.uri, experiment=self._recipe.track.experiment).run_id
        except (TrackingError, MissingExtra) as error:
            self._tell(str(error))
