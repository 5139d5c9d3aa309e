"""The spool: a run's events as JSON lines, append-only; the one truth that trackers and reports read.

One event is one line and one `write`, so a killed process loses at most the line it was writing. JSON here is strict:
non-finite numbers are the strings "NaN", "Infinity" and "-Infinity".
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from snugfit.errors import RunFolderError
from snugfit.system.json_text import parse_json
from snugfit.system.redaction import is_of_numbers, redacted

_BINARY = getattr(os, "O_BINARY", 0)  # or Windows ends lines in its own way

Event = dict[str, Any]

SPOOL_NAME = "events.jsonl"
_MOST_WAITING_BYTES = 1 << 26
"""Memory that events may wait in which cannot be written; those of updates that come after are counted and lost."""

SMOKE = "smoke"
"""The entry of a run's first event that names the option by which it was a smoke run."""

NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
REPEATED_AFTER_RESUME = ("update", "system", "evaluation", "checkpoint", "skipped", "replan")


class Events(list[Event]):
    """A list of events that also knows how many lines could not be read: `ignored`, torn ones included.

    `seconds` are those that were worked, as of `worked_seconds`, also for events that a later resume repeats.
    """

    def __init__(self, events: list[Event] | None = None, ignored: int = 0) -> None:
        super().__init__(events or [])
        self.ignored = ignored
        self.seconds = 0.0


class Spool:
    """Append events to a file; safe to call from several threads.

    A file that ends in a torn line (the process was killed in the middle of a write) is continued on a fresh line. Events that cannot be
    written, as the disk is full, wait in memory and are written in their order as soon as that works; `problem` says why meanwhile.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "events.jsonl"
    >>> with Spool(path) as spool:
    ...     event = spool.append("update", update=1, metrics={"loss": float("inf")})
    >>> [(event["event"], event["metrics"]) for event in read_events(path)]
    [('update', {'loss': inf})]

    Raises:
        RunFolderError: the file cannot be opened, or on `close` there are events that could not be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | _BINARY, 0o644)
        except OSError as error:
            raise RunFolderError(
                self.path,
                f"events cannot be written here: {error.strerror}",
                "Free space, or make the folder writable.",
            ) from error
        size = os.fstat(self._descriptor).st_size
        if size > 0:
            os.lseek(self._descriptor, size - 1, os.SEEK_SET)  # what is written goes to the end all the same
        self._torn = size > 0 and os.read(self._descriptor, 1) != b"\n"
        self.problem: str | None = None
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = self._lost = 0
        self._lock = threading.RLock()

    def append(self, kind: str, /, **fields: Any) -> dict[str, Any]:
        """Write one event, without secrets in it, and return it.

        In the file, scalars and arrays of numpy and torch are numbers and lists, and paths are strings.
        """
        event: dict[str, Any]
        if is_of_numbers(fields):  # as each update's is
            event = {"event": kind, "time": time.time(), **fields}
        else:
            event = redacted({"event": kind, "time": time.time(), **fields})
        try:
            text = _encode(event)
        except ValueError:  # a non-finite number: rare, so the search for it is not on the usual way
            text = _encoder.encode(_strict(event))
        line = f"{text}\n".encode("ascii")
        with self._lock:
            if kind == "update" and self._waiting_bytes + len(line) > _MOST_WAITING_BYTES:
                self._lost += 1
            else:
                self._waiting.append(line)
                self._waiting_bytes += len(line)
            self._write_waiting()
        return event

    def _write_waiting(self) -> None:
        try:
            while self._waiting:
                self._write(self._waiting[0])
                self._waiting_bytes -= len(self._waiting.popleft())
        except OSError as error:
            self.problem = error.strerror or str(error)
            return
        self.problem = None
        if self._lost:
            lost, self._lost = self._lost, 0
            self.append("warning", message=f"{lost} events of updates are lost: they could not be written.")

    def _write(self, line: bytes) -> None:
        if self._torn:
            line = b"\n" + line
        written = os.write(self._descriptor, line)
        while written < len(line):  # a nearly full disk; the rest says whether it is a full one
            self._torn = True
            written += os.write(self._descriptor, line[written:])
        self._torn = False

    def close(self) -> None:
        """Flush to the device and close; a second call does nothing."""
        if self._descriptor < 0:
            return
        try:
            with self._lock:
                self._write_waiting()
            os.fsync(self._descriptor)
        except OSError as error:
            self.problem = self.problem or error.strerror or str(error)
        finally:
            os.close(self._descriptor)
            self._descriptor = -1
        if self.problem is not None:
            raise RunFolderError(
                self.path,
                f"the last events cannot be written: {self.problem}; {len(self._waiting) + self._lost} of them are lost",
                "Free space before the run goes on.",
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def read_events(path: str | os.PathLike[str], *, raw: bool = False) -> Events:
    """Return all events of a spool, in order, without those that a later resume repeats.

    A resume goes back to a checkpoint: updates, evaluations, checkpoints and skipped windows that were written before
    the `resume` event and lie beyond its window (or its update, for events without a window) are dropped. Lines that
    are not JSON objects with an "event", a torn last one among them, are ignored and counted in `.ignored`. The
    strings for non-finite numbers become numbers again wherever they stand in "metrics".

    Args:
        raw: keep what a resume repeats.
    Raises:
        RunFolderError: there is no such file, or it cannot be read.
    """
    path = Path(path)
    try:
        return _read(path, raw)
    except FileNotFoundError as error:
        raise RunFolderError(
            path.parent,
            f"is not the folder of a run: it has no {path.name}",
            "Name one, RUNS/NAME/ID; snugfit runs lists them.",
        ) from error
    except OSError as error:
        raise RunFolderError(
            path, f"the run's events cannot be read: {error.strerror}", "Put a whole file back."
        ) from error


def _read(path: Path, raw: bool) -> Events:
    events, worked = Events(), _Worked()
    with path.open("rb") as file:
        for line in filter(None, (each.rstrip(b"\n") for each in file)):
            event = parse_line(line)
            if event is None:
                events.ignored += 1
                continue
            worked.add(event)
            if event["event"] == "resume" and not raw:
                events[:] = [earlier for earlier in events if not is_repeated(earlier, event)]
            events.append(event)
    events.seconds = worked.seconds
    return events


def complete_lines(
    path: str | os.PathLike[str], offset: int, limit_bytes: int = 1 << 20
) -> Iterator[tuple[int, bytes]]:
    """Yield lines that are finished by a newline from a byte offset on, each with the offset behind it.

    At most about `limit_bytes` are read, but always at least one whole line if there is one.
    """
    with open(path, "rb") as file:
        file.seek(offset)
        end = offset + limit_bytes
        for line in file:
            if not line.endswith(b"\n"):
                return
            offset += len(line)
            yield offset, line[:-1]
            if offset >= end:
                return


def parse_line(line: bytes) -> Event | None:
    """Return the event of one line, or None if the line is not one."""
    try:
        event = parse_json(line)
    except ValueError:
        return None
    if not isinstance(event, dict) or not isinstance(event.get("event"), str):
        return None
    revived: Event = _revive(event)
    return revived


def is_repeated(event: Event, resume: Event) -> bool:
    """Return whether the windows that follow this resume write the (earlier) event again."""
    if event["event"] not in REPEATED_AFTER_RESUME:
        return False
    for unit in ("window", "update"):
        if unit in event and unit in resume:
            return bool(event[unit] > resume[unit])
    return False


def worked_seconds(events: Sequence[Event]) -> float:
    """Return the seconds between the first and last event of each process; the pauses before a resume do not count.

    Args:
        events: raw, so that what a resume did again counts twice, as it took its time twice.

    >>> worked_seconds([{"event": "run", "time": 1}, {"event": "update", "time": 4}, {"event": "resume", "time": 50}, {"event": "end", "time": 52}])
    5.0
    """
    worked = _Worked()
    for event in events:
        worked.add(event)
    return worked.seconds


class _Worked:
    """Adds up the seconds that the processes of a run have worked, event by event."""

    def __init__(self) -> None:
        self._before, self._last = 0.0, 0.0
        self._first: float | None = None
        self._ended = False

    def add(self, event: Event) -> None:
        begins = event["event"] in ("run", "resume")
        if event["event"] == "certified" or (self._ended and not begins):  # at some time after the run
            return
        self._ended = event["event"] == "end"
        time = event.get("time")
        time = float(time) if isinstance(time, (int, float)) else 0.0
        if self._first is None or begins:
            self._before, self._first = self.seconds, time
        self._last = time

    @property
    def seconds(self) -> float:
        return self._before + (self._last - self._first if self._first is not None else 0.0)


def _plain(value: Any) -> Any:
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist"):  # numpy and torch: a scalar gives a number, an array gives lists
        return value.tolist()
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    raise TypeError(
        f"An event cannot hold a {type(value).__module__}.{type(value).__qualname__}: {value!r:.100}"
    )


def _strict(value: Any) -> Any:
    if isinstance(value, float):
        if math.isnan(value):
            return "NaN"
        return value if math.isfinite(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, Mapping):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(item) for item in value]
    if value is None or isinstance(value, (str, int)):
        return value
    return _strict(_plain(value))


def _revive(value: Any, inside_metrics: bool = False) -> Any:
    if isinstance(value, dict):
        # names as one object each: those of a million updates would be most of their memory
        return {
            sys.intern(key): _revive(item, inside_metrics or key == "metrics") for key, item in value.items()
        }
    if inside_metrics and isinstance(value, str):
        return NON_FINITE.get(value, value)
    if isinstance(value, list):
        return [_revive(item, inside_metrics) for item in value]
    return value


_encoder = json.JSONEncoder(allow_nan=False, separators=(",", ":"), default=_plain)


def _encode(event: Event) -> str:
    """Return what the encoder makes of an event."""
    return _encoder.encode(event) if _in_c is None else "".join(_in_c(event, 0))


def _encoder_in_c() -> Callable[[Event, int], Iterable[str]] | None:
    """Return the function in C that the encoder makes anew for each text; None where Python has none."""
    make = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return None
    encoder: Callable[[Event, int], Iterable[str]] = make(
        None, _plain, json.encoder.encode_basestring_ascii, None, ":", ",", False, False, False
    )
    return encoder


_in_c = _encoder_in_c()
