"""Sending a run's pending events to one tracker, and remembering what was acknowledged; `replay` does it in one go."""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from snugfit.errors import RunFolderError, SnugfitError, TrackingError
from snugfit.system.plugins import Importer
from snugfit.system.redaction import redact
from snugfit.system.user_objects import is_python_path
from snugfit.tracking.backend import FAILURES, Backend, RunGone, reason
from snugfit.tracking.cursor import TRACKING, Cursor, Cursors, sending
from snugfit.tracking.mlflow import MlflowBackend
from snugfit.tracking.named import NAMED, TRACKERS, MakeBackend, NamedTracker, tracker
from snugfit.tracking.pending import Pending
from snugfit.tracking.spool import SPOOL_NAME
from snugfit.tracking.translate import to_batch
from snugfit.tracking.uri import check_uri, resolve_uri


@dataclass(frozen=True)
class ReplayResult:
    """The result of `replay`, in events sent."""

    sent: int
    remaining: int
    run_id: str | None
    uri: str


class Sender:
    """Sends a run's pending events to one backend, batch by batch, and remembers what was acknowledged."""

    def __init__(
        self,
        run_dir: Path,
        uri: str,
        experiment: str,
        backend: Backend,
        *,
        current: bool,
        files: str = TRACKING,
    ) -> None:
        self.run_dir, self.uri = run_dir, uri
        self.sent = 0
        self._current = current
        self._backend = backend
        self._cursors = Cursors(run_dir, files)
        self.cursor = self._cursors.get(uri) or Cursor(experiment=experiment)
        self._name = f"{run_dir.parent.name}/{run_dir.name}"
        self._spool = run_dir / SPOOL_NAME
        self._pending = Pending(self._spool, self.cursor.offset)
        self._open = False

    def send_next(self) -> bool:
        """Send one batch, if there is something to send; whether there may be more already.

        A run that is writing all the time has always something more, but not at once a batch of it: that comes later.

        Raises:
            Exception: whatever the backend raises; the batch is then still pending.
        """
        if not self._pending.has_more(self.cursor.offset):
            return False
        thinning = copy.copy(self.cursor.thinning)
        chunk = self._pending.read(self.cursor.offset, thinning)
        if chunk.offset == self.cursor.offset:
            return False
        batch, _ = to_batch(chunk.events, with_params=not self.cursor.described)
        if batch:
            if not self._open and self._connect(batch.start_ms):
                return True
            assert self.cursor.run_id is not None
            self._backend.send(self.cursor.run_id, batch)
        self.cursor.offset = chunk.offset
        self.cursor.thinning = thinning
        self.cursor.described = self.cursor.described or bool(batch.params)
        self._cursors.put(self.uri, self.cursor, current=self._current)
        self.sent += chunk.lines
        return chunk.full

    def unsent(self, until: int | None = None) -> int:
        """Return how many events wait in the spool, or in its beginning up to that byte."""
        return self._pending.count(self.cursor.offset, until)

    def _connect(self, start_ms: int) -> bool:
        """Open the tracker's run; True if it had to be begun anew, so that what is pending has changed."""
        cursor = self.cursor
        restarted = False
        try:
            run_id = self._backend.open(cursor.run_id, self._name, start_ms)
        except RunGone:
            self.cursor = cursor = Cursor(experiment=cursor.experiment)
            self._pending = Pending(self._spool, 0)
            run_id = self._backend.open(None, self._name, start_ms)
            restarted = True
        self._open = True
        if run_id != cursor.run_id:  # at once: a batch that is sent must find its run again
            cursor.run_id = run_id
            self._cursors.put(self.uri, cursor, current=self._current)
        return restarted


def replay(
    run_dir: str | os.PathLike[str],
    uri: str | None = None,
    *,
    experiment: str | None = None,
    backend: MakeBackend | None = None,
    progress: Callable[[int], None] | None = None,
) -> ReplayResult:
    """Send what a run's tracker has not got yet, or all of the run to another tracker.

    Args:
        uri: or the name of a tracker that has no address, such as "tensorboard", "wandb" or the `package.module:Class` of one's own. By
            default it is where the run was tracked or was to be, by its recipe's track.uri, else MLFLOW_TRACKING_URI, else the database
            beside the runs. The run itself stays with its first tracker when it is resumed.
        progress: is told after each batch how many events have been sent.
    Raises:
        TrackingError: the tracker cannot be used; what was sent until then is remembered, so it can be called again.
        RunFolderError: there is no run.
        MissingExtra: MLflow is not installed.
    """
    run_dir = Path(run_dir)
    if not (run_dir / SPOOL_NAME).is_file():
        raise RunFolderError(
            run_dir, f"is not a run's folder: it has no {SPOOL_NAME}", "Name the folder of a run."
        )
    if uri is not None and (uri in NAMED or is_python_path(uri) or uri in TRACKERS.entry_points()):
        named = tracker(uri, "uri", Importer(folder=Path.cwd(), allowed=True))
        return _replay_to(named, run_dir, experiment, backend, progress)
    cursors = Cursors(run_dir)
    own, own_experiment = _own_tracker(run_dir)
    stored = cursors.current_uri
    if uri is None and own is not None and stored in (None, redact(own)):  # the recipe has the password too
        uri = own
    uri = resolve_uri(uri, run_dir.parent.parent, stored=stored)
    check_uri(uri)
    known = cursors.get(uri)
    experiment = experiment or (known.experiment if known else _experiment(cursors) or own_experiment)
    with sending(run_dir):
        client = backend(uri, experiment) if backend else MlflowBackend(uri, experiment, run_dir)
        current = cursors.current is None and own in (None, uri)
        return _send_all(Sender(run_dir, uri, experiment, client, current=current), client, progress)


def _replay_to(
    named: NamedTracker,
    run_dir: Path,
    experiment: str | None,
    backend: MakeBackend | None,
    progress: Callable[[int], None] | None,
) -> ReplayResult:
    known = Cursors(run_dir, named.files).get(named.name)
    experiment = experiment or (known.experiment if known else _own_tracker(run_dir)[1])
    with sending(run_dir, named.files):
        client = (backend or named.backend(run_dir))(named.name, experiment)
        sender = Sender(run_dir, named.name, experiment, client, current=True, files=named.files)
        return _send_all(sender, client, progress)


def _send_all(sender: Sender, client: Backend, progress: Callable[[int], None] | None) -> ReplayResult:
    """Send all that is pending.

    Raises:
        TrackingError: the tracker does not take it.
    """
    try:
        try:
            more = True
            while more:
                more = sender.send_next()
                if progress is not None:
                    progress(sender.sent)
        finally:
            client.close()
    except SnugfitError:
        raise
    except FAILURES as error:
        raise TrackingError(
            redact(sender.uri),
            f"did not take the events of {sender.run_dir}: {reason(error)} Sent: {sender.sent}, still to send: {sender.unsent()}",
            "Call it again when the tracker answers.",
        ) from error
    return ReplayResult(sender.sent, sender.unsent(), sender.cursor.run_id, sender.uri)


def _experiment(cursors: Cursors) -> str | None:
    current = cursors.get(cursors.current_uri) if cursors.current_uri else None
    return current.experiment if current else None


def _own_tracker(run_dir: Path) -> tuple[str | None, str]:
    """Return the address and the experiment that the run's recipe names."""
    import yaml

    try:
        recipe = yaml.safe_load((run_dir / "recipe.yaml").read_text(encoding="utf-8"))
    except FileNotFoundError:  # a run that was made in Python
        recipe = None
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise RunFolderError(
            run_dir / "recipe.yaml", f"cannot be read: {error}", "Put a whole file back."
        ) from error
    track = recipe.get("track") if isinstance(recipe, dict) else None
    track = track if isinstance(track, dict) else {}
    return track.get("uri"), track.get("experiment") or "snugfit"
