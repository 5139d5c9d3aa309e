"""A cross-validation in the tracker: one run, under which those of the folds are shown."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from snugfit.errors import MissingExtra, TrackingError
from snugfit.tools.cross_validation import CrossValidation
from snugfit.tracking.cursor import stored_uri
from snugfit.tracking.spool import Spool
from snugfit.tracking.uri import check_uri, resolve_uri
from snugfit.training.folder import RunFolder

if TYPE_CHECKING:
    from snugfit.recipe import Recipe

Tell = Callable[[str], None]


class TrackedFolds:
    """Events of a cross-validation, kept in its folder and sent from there; what could not be sent goes with what follows.

    `uri` is the tracker's address and `run_id` the run there, None without a tracker, or one that has not answered yet.
    """

    def __init__(self, recipe: Recipe, folder: RunFolder, tell: Tell) -> None:
        self.uri: str | None = None
        self.run_id: str | None = None
        self._recipe, self._folder, self._tell = recipe, folder, tell

    def __enter__(self) -> TrackedFolds:
        track = self._recipe.track
        if track.mlflow:
            stored = stored_uri(self._folder.path)
            self.uri = resolve_uri(track.uri, self._recipe.output, stored=stored)
            check_uri(self.uri, experiment=track.experiment)
        self._spool = Spool(self._folder.events)
        self._ended = False
        self._write("run", name=f"{self._recipe.name}/cv", id=self._folder.id, recipe=self._recipe.as_dict())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if not self._ended:
            self.end("failed", str(error))
        self._spool.close()

    def folds(self, found: CrossValidation) -> None:
        spread = found.summary.spread
        self._write(
            "folds",
            update=len(found.scores),
            mean=dict(found.summary.mean),
            deviation={
                name: each.deviation for name, each in spread.items() if math.isfinite(each.deviation)
            },
            corrected_error={
                name: each.corrected_error
                for name, each in spread.items()
                if math.isfinite(each.corrected_error)
            },
        )

    def end(self, status: str, reason: str | None = None) -> None:
        self._ended = True
        self._write("end", status=status, stop_reason=reason)

    def _write(self, kind: str, **fields: Any) -> None:
        self._spool.append(kind, **fields)
        if self.uri is None:
            return
        from snugfit.tracking.sender import replay  # imports MLflow

        try:
            self.run_id = replay(self._folder.path, self.uri, experiment=self._recipe.track.experiment).run_id
        except (TrackingError, MissingExtra) as error:
            self._tell(str(error))
