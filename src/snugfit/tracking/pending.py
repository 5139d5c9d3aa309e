"""The events still to be sent: the spool from a byte offset on, without what a resume repeats, fast runs thinned."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from snugfit.tracking.spool import Event, complete_lines, is_repeated, parse_line

_RESUME = b'"event":"resume"'
_UPDATE = re.compile(
    rb'\{"event":"update","time":([0-9.e+]+)[,}]'
)  # as Spool writes it; saves parsing what is dropped


@dataclass
class Thinning:
    """A limit to the updates that reach the tracker: `per_second` of them once a burst of `burst` is used up; the spool keeps all.

    A store takes about 0.1 ms for a metric, so all updates of a small model's loop would cost more than its training.
    It is a token bucket on the events' own times, hence the same at every replay.
    """

    per_second: float = 10.0
    burst: int = 1000
    tokens: float = 1000.0
    time: float | None = None

    def keep(self, time: float) -> bool:
        """Return whether the update written at this time is sent."""
        if self.time is not None:
            self.tokens = min(float(self.burst), self.tokens + max(0.0, time - self.time) * self.per_second)
        self.time = time
        if self.tokens < 1.0:
            return False
        self.tokens -= 1.0
        return True


@dataclass
class Chunk:
    """Events up to the byte `offset`, where the next chunk begins; `lines` counts all lines it covers.

    `full` says that it ends because of its size, so that there may be more.
    """

    offset: int
    events: list[Event] = field(default_factory=list)
    lines: int = 0
    ignored: int = 0
    full: bool = False


class Pending:
    """Reads a growing spool in chunks. Updates that a later resume repeats are left out, if they have not been sent."""

    def __init__(self, path: Path, offset: int) -> None:
        self.path = path
        self._scanned = offset
        self._resumes: list[tuple[int, Event]] = []

    def read(
        self, offset: int, thinning: Thinning, *, max_events: int = 200, limit_bytes: int = 1 << 20
    ) -> Chunk:
        """Return the next chunk from this offset on, and empty if there is none. `thinning` is advanced."""
        self._scan_resumes()
        chunk = Chunk(offset)
        for end, line in complete_lines(self.path, offset, limit_bytes):
            if end > self._scanned:
                break
            if len(chunk.events) >= max_events:
                chunk.full = True
                break
            chunk.offset, chunk.lines = end, chunk.lines + 1
            if not line:
                continue
            update = _UPDATE.match(line)
            if update and not thinning.keep(float(update[1])):
                continue
            event = parse_line(line)
            if event is None:
                chunk.ignored += 1
            elif not any(end <= at and is_repeated(event, resume) for at, resume in self._resumes):
                chunk.events.append(event)
        chunk.full = chunk.full or chunk.offset - offset >= limit_bytes
        self._resumes = [(at, resume) for at, resume in self._resumes if at > chunk.offset]
        return chunk

    def count(self, offset: int, until: int | None = None) -> int:
        """Return lines from this offset to another or to the end of the file, an unfinished one not counted."""
        if not self.path.exists():
            return 0
        ends = (end for end, _ in complete_lines(self.path, offset, limit_bytes=1 << 62))
        return sum(1 for end in ends if until is None or end <= until)

    def size(self) -> int:
        """Return where the file ends now."""
        return os.stat(self.path).st_size if self.path.exists() else 0

    def has_more(self, offset: int) -> bool:
        """Return whether the file has grown beyond this offset."""
        return self.path.exists() and os.stat(self.path).st_size > offset

    def _scan_resumes(self) -> None:
        for end, line in complete_lines(self.path, self._scanned, limit_bytes=1 << 62):
            self._scanned = end
            if _RESUME in line:
                event = parse_line(line)
                if event is not None and event["event"] == "resume":
                    self._resumes.append((end, event))
