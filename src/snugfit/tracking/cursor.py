"""tracking.json: how far each tracker has got with a run's spool, and under which id it knows the run."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from snugfit.errors import RunFolderError, TrackingError
from snugfit.system.disk_files import whole_file
from snugfit.system.json_text import parse_json
from snugfit.system.redaction import redact
from snugfit.tracking.pending import Thinning
from snugfit.tracking.uri import database_path, database_uri

TRACKING = "tracking"
"""The name of the file of progress and of the lock, of trackers with an address; one without has files of its own name."""
FORMAT = 1


@dataclass
class Cursor:
    """Acknowledged progress with one tracker: everything before the byte `offset` is stored there."""

    run_id: str | None = None
    offset: int = 0
    described: bool = False  # parameters are stored: they are sent once
    experiment: str = "snugfit"
    thinning: Thinning = field(default_factory=Thinning)


class Cursors:
    """The trackers that a run has been sent to, by address without password; `current` is the one a resume goes on with.

    The address of a database inside the runs' folder is kept relative to the run, so that the folder can be moved. The run's own
    place is kept too, by which a run that is moved without the database goes on in it; a copy of a run that is still there does not.

    Raises:
        RunFolderError: the file is there and cannot be read as what it should be.
    """

    def __init__(self, run_dir: str | os.PathLike[str], name: str = TRACKING) -> None:
        self.run_dir = Path(run_dir)
        self._file = f"{name}.json"
        self.current: str | None = None
        self._cursors: dict[str, Cursor] = {}
        path = self.run_dir / self._file
        if not path.exists():
            return
        try:
            content = parse_json(path.read_text(encoding="utf-8"))
            if content["format"] != FORMAT:
                raise ValueError(f"format {content['format']} is not {FORMAT}")
            for key, values in content["trackers"].items():
                thinning = Thinning(**values.pop("thinning"))
                self._cursors[key] = Cursor(**values, thinning=thinning)
            self.current = content["current"]
            self._find_left_behind(Path(content.get("run_dir", self.run_dir)))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunFolderError(
                path,
                f"cannot be read ({error})",
                "Remove it to send the whole run again as a new tracker run.",
            ) from error

    def get(self, uri: str) -> Cursor | None:
        """Return the progress with this tracker, or None if it has not seen the run."""
        return self._cursors.get(self._key(uri))

    def put(self, uri: str, cursor: Cursor, *, current: bool) -> None:
        """Store the progress, atomically: a reader sees the old file or the new one."""
        key = self._key(uri)
        self._cursors[key] = cursor
        if current:
            self.current = key
        content = {
            "format": FORMAT,
            "current": self.current,
            "run_dir": os.path.abspath(self.run_dir),
            "trackers": {key: asdict(cursor) for key, cursor in self._cursors.items()},
        }
        with whole_file(self.run_dir / self._file) as draft, draft.open("w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
            file.flush()
            os.fsync(file.fileno())

    @property
    def current_uri(self) -> str | None:
        """Address of the current tracker, without password; a relative database resolved from the run's folder."""
        if self.current is None:
            return None
        path = database_path(self.current)
        if path is not None and not path.is_absolute():
            return database_uri(self.run_dir / path)
        return self.current

    def _find_left_behind(self, before: Path) -> None:
        """Know a database beside the runs by its place, if the run's folder was moved away from `before` without it."""
        if before.exists():
            return
        for key in [*self._cursors]:
            path = database_path(key)
            if path is None or path.is_absolute() or (self.run_dir / path).exists():
                continue
            place = Path(os.path.normpath(before / path))
            if place.exists():
                known = self._key(database_uri(place))
                self._cursors[known] = self._cursors.pop(key)
                self.current = known if self.current == key else self.current

    def _key(self, uri: str) -> str:
        path = database_path(uri)
        if path is None:
            return redact(uri)
        relative = os.path.relpath(os.path.abspath(path), os.path.abspath(self.run_dir))
        beside_the_runs = relative.replace(os.sep, "/").startswith("../") and relative.count("..") <= 2
        return f"sqlite:///{relative}" if beside_the_runs else database_uri(path)


def stored_uri(run_dir: str | os.PathLike[str]) -> str | None:
    """Address of the tracker that a run was started with, or None if it has not been tracked yet."""
    return Cursors(run_dir).current_uri


@contextlib.contextmanager
def sending(run_dir: Path, name: str = TRACKING) -> Iterator[None]:
    """Make sure that only one process or thread sends a run's events to trackers of this name.

    Raises:
        TrackingError: another one is at it.
    """
    try:
        import fcntl
    except ImportError:  # Windows: no such lock; two senders at a time are the user's to avoid
        yield
        return
    descriptor = os.open(run_dir / f"{name}.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise TrackingError(
                run_dir, "its events are being sent by another process", "Wait until that is done."
            ) from error
        try:
            yield
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # explicitly: forked workers hold the descriptor too
    finally:
        os.close(descriptor)
