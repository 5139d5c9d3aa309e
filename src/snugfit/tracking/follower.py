"""The tracker as a follower of the spool: a background thread that sends what is written there, in batches.

Training never waits for the tracker. It only appends to the spool; the thread here reads the file, so a dead or slow
server costs nothing but the tracker's own lag. What has been acknowledged is remembered as a byte offset, after each
batch, so nothing is lost: a later `resume` or `snugfit track replay` goes on from there.

An event can be stored twice in two cases, and both are harmless. A process that is killed between a batch and the
writing of its offset sends the batch again: MLflow recognises equal (name, value, time, step). And a run that is resumed
behind events that were already sent logs those steps again, with the same values, at later times.
"""

from __future__ import annotations

import os
import shlex
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from snugfit.system.redaction import redact
from snugfit.tracking.backend import FAILURES, Backend, reason
from snugfit.tracking.client_process import Client, ClientProcess
from snugfit.tracking.cursor import TRACKING, Cursor, Cursors, sending
from snugfit.tracking.mlflow import missing_mlflow
from snugfit.tracking.named import MakeBackend
from snugfit.tracking.pending import Pending
from snugfit.tracking.sender import Sender
from snugfit.tracking.spool import SPOOL_NAME

FIRST_BACKOFF_SECONDS = 1.0
MAX_BACKOFF_SECONDS = 60.0
END_SECONDS = 30.0
"""The most that the end of a run waits for its tracker, whichever it is: one that creates its tables takes ten."""

_SILENT_SECONDS = 2.0
"""A wait that is longer is told; the system is asked to wait so long at a time."""

_MLFLOW_SECONDS = 600.0
"""The most that MLflow's client may take for a request: its first use of a database creates the tables, low in priority."""


@dataclass(frozen=True)
class TrackingResult:
    """The progress of the tracker: events sent by this process, events that wait in the spool, and why.

    Args:
        named: whether it has a name in place of an address.
        unfinished: says that it has not ended its own work on what it was sent, and why.
    """

    uri: str
    run_id: str | None
    sent: int
    unsent: int
    problem: str | None
    named: bool = False
    unfinished: str | None = None

    def message(self, run_dir: str | os.PathLike[str]) -> str | None:
        """Return what to tell the user, if anything."""
        if not self.unsent:
            return self.unfinished
        return (
            f"{self.unsent} events have not reached {redact(self.uri)} ({self.problem or 'no time left'}); "
            f"they are kept. Send them with: snugfit track replay {shlex.quote(str(run_dir))}{f' --uri {self.uri}' if self.named else ''}"
        )


class Tracker:
    """Follow a run's spool and keep a tracker up to date, from a daemon thread that never raises into training.

    The thread connects when the first measurement is in the spool, so that it does not slow the start down. After a
    failure it waits 1, 2, 4 … 60 seconds. Nothing is sent from the caller's thread.

    Args:
        uri: as `resolve_uri` gives it. A run that this tracker knows already is continued under its id; another
            address gets the whole run.
        backend: makes the tracker's client, in the thread; MLflow's by default, in a process of its own: its import and its tables take
            seconds, in which the interpreter would train no further.
        say: is told when `flush` or `close` has to wait.
        files: the name under which its progress is kept, where that is not beside that of trackers with an address.
        interval_seconds: how often the spool is looked at.
    """

    def __init__(
        self,
        run_dir: str | os.PathLike[str],
        *,
        uri: str,
        experiment: str = "snugfit",
        backend: MakeBackend | None = None,
        interval_seconds: float = 2.0,
        say: Callable[[str], None] | None = None,
        files: str = TRACKING,
    ) -> None:
        self.run_dir = Path(run_dir)
        self.uri = uri
        self.experiment = experiment
        self.problem: str | None = None
        self._unfinished: str | None = None
        self._of_mlflow = backend is None
        self._make_backend = backend or self._mlflow
        self._interval = interval_seconds
        self._say, self._files = say, files
        self._interrupted = False
        self._left = END_SECONDS  # to wait in, for all calls together that give no time of their own
        self._sender: Sender | None = None
        self._backend: Backend | None = None
        self._run_id = known.run_id if (known := Cursors(self.run_dir, files).get(uri)) else None
        self._changed = threading.Condition()  # guards the four below
        self._asked = 0  # how often a flush was asked for, and up to which one it was done
        self._answered = 0
        self._closing = False
        self._given_up = False
        self._last: int | None = (
            None  # byte behind which events are not waited for: of the wait itself, of other trackers
        )
        self._thread = threading.Thread(target=self._follow, name="snugfit-tracker", daemon=True)

    @property
    def run_id(self) -> str | None:
        """The tracker's id of this run, once it is known."""
        return self._sender.cursor.run_id if self._sender else self._run_id

    @property
    def interrupted(self) -> bool:
        """True once Ctrl-C has ended a wait."""
        return self._interrupted

    def start(self) -> Self:
        """Begin to follow. Without MLflow this only notes the problem: the spool is kept all the same.

        The run's folder knows its tracker from here on, so that a replay finds one that never answered.
        """
        cursors = Cursors(self.run_dir, self._files)
        with suppress(OSError):  # the spool is what counts, and says itself that the disk is full
            cursors.put(self.uri, cursors.get(self.uri) or Cursor(experiment=self.experiment), current=True)
        if self._of_mlflow:
            self.problem = missing_mlflow()
        if self.problem is None:
            self._thread.start()
        return self

    def flush(self, timeout: float | None = None) -> TrackingResult:
        """Send what is in the spool now and go on following; waits like `close`."""
        # what the wait itself writes is not waited for, and so is not missing either
        last = Pending(self.run_dir / SPOOL_NAME, 0).size() if self._last is None else self._last
        with self._changed:
            self._asked += 1
            asked = self._asked
            self._changed.notify_all()

        def answered(seconds: float) -> bool:
            with self._changed:
                return self._changed.wait_for(
                    lambda: self._answered >= asked or not self._thread.is_alive(), seconds
                )

        return self._result(self._wait(answered, timeout), last)

    def begin_to_close(self) -> None:
        """Have the thread send the rest and stop, without waiting for it: of several trackers each has its time then."""
        if self._last is None:
            self._last = Pending(self.run_dir / SPOOL_NAME, 0).size()
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if isinstance(self._backend, ClientProcess):
            self._backend.hurry()

    def close(self, timeout: float | None = None) -> TrackingResult:
        """Send the rest and stop; the result says what was not sent.

        Gives up at once when the tracker fails, so a dead server is not waited for, and otherwise after `timeout` seconds: by default
        after what is left of `END_SECONDS`, of which a flush before it takes its part. Ctrl-C ends the wait.
        """
        self.begin_to_close()

        def ended(seconds: float) -> bool:
            if self._thread.is_alive():
                self._thread.join(seconds)
            return not self._thread.is_alive()

        late = self._wait(ended, timeout)
        if self._thread.is_alive():
            self._unfinished = f"{redact(self.uri)} has not ended its work ({late})."
        self._given_up = True  # a batch under way may still be acknowledged; the next is left to a replay
        return self._result(late, self._last)

    def _wait(self, until: Callable[[float], bool], timeout: float | None) -> str:
        """Wait until that holds, which gets the seconds to wait in; returns what to say if the tracker has not answered by then.

        It waits a little at a time: a signal that comes between the interpreter's last look and the system's wait is seen when that ends.
        """
        most, start = self._left if timeout is None else timeout, time.monotonic()
        say, left = self._say if most > _SILENT_SECONDS else None, most
        try:
            while not until(min(left, _SILENT_SECONDS)):
                left = most - (time.monotonic() - start)
                if left <= 0:
                    break
                if say is not None:
                    say(
                        f"waiting up to {most:.0f} s for {redact(self.uri)} to take the last events. Ctrl-C ends the wait; they are kept."
                    )
                    say = None
        except KeyboardInterrupt:
            self._left, self._interrupted = 0.0, True
        if timeout is None:
            self._left = max(0.0, self._left - (time.monotonic() - start))
        return (
            "the wait was ended"
            if self._interrupted
            else f"no answer within {END_SECONDS if timeout is None else timeout:g} s"
        )

    def _result(self, late: str, last: int | None) -> TrackingResult:
        if self._sender is not None:
            sent, unsent = self._sender.sent, self._sender.unsent(last)
        else:
            known = Cursors(self.run_dir, self._files).get(self.uri)
            offset = known.offset if known else 0
            sent, unsent = 0, Pending(self.run_dir / SPOOL_NAME, offset).count(offset, last)
        problem = self.problem
        if problem is None and unsent:
            problem = late
        named = self._files != TRACKING
        return TrackingResult(self.uri, self.run_id, sent, unsent, problem, named, self._unfinished)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _follow(self) -> None:
        backend: Backend | None = None
        try:
            with sending(self.run_dir, self._files):
                self._wait_for_measurement()
                self._backend = backend = self._make_backend(self.uri, self.experiment)
                self._sender = Sender(
                    self.run_dir, self.uri, self.experiment, backend, current=True, files=self._files
                )
                self._send_until_closed(self._sender)
        except FAILURES as error:  # a tracker must not harm training; flush and close report the problem
            self.problem = reason(error)
        finally:
            if backend is not None:
                self._end(backend)
            with self._changed:
                self._answered = sys.maxsize  # nobody need wait for this thread any more
                self._changed.notify_all()

    def _end(self, backend: Backend) -> None:
        try:
            backend.close()
        except FAILURES as error:  # as above
            why = reason(error)
            self._unfinished = why if why.startswith(f"{self.uri}:") else f"{redact(self.uri)}: {why}"

    def _wait_for_measurement(self) -> None:
        path = self.run_dir / SPOOL_NAME
        offset = 0
        while not self._closing and not self._asked:
            if path.exists():
                with open(path, "rb") as file:
                    file.seek(offset)
                    new = file.read()
                if b'{"event":"update"' in new or b'{"event":"evaluation"' in new:
                    return
                offset += new.rfind(b"\n") + 1
            with self._changed:
                self._changed.wait_for(lambda: self._closing or self._asked, min(self._interval, 0.2))

    def _send_until_closed(self, sender: Sender) -> None:
        backoff = FIRST_BACKOFF_SECONDS
        while True:
            # read before sending: what was written before the request is then surely sent
            with self._changed:
                asked, closing = self._asked, self._closing
            pause = self._interval
            try:
                more = True
                while more and not self._given_up:
                    more = sender.send_next()
                    self.problem, backoff = None, FIRST_BACKOFF_SECONDS
            except FAILURES as error:  # any failure of a tracker is answered by trying again later
                self.problem = reason(error)
                pause, backoff = backoff, min(2 * backoff, MAX_BACKOFF_SECONDS)
            if closing:
                return
            self._answer(asked, pause)

    def _answer(self, asked: int, pause: float) -> None:
        """Tell who waits for a flush that it was tried, and sleep until there is another request."""
        with self._changed:
            self._answered = asked
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._closing or self._asked != asked, pause)

    def _mlflow(self, uri: str, experiment: str) -> Backend:
        arguments = {"uri": uri, "experiment": experiment, "folder": self.run_dir}
        return ClientProcess(Client("snugfit.tracking.mlflow:MlflowBackend", arguments), _MLFLOW_SECONDS)
