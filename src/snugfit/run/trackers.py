"""The trackers of a run, which follow its events: MLflow, and those that have a name alone. None of them harms the run, or another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from snugfit.errors import UserError
from snugfit.results.run_folder import RunFolder
from snugfit.run.events import DOING, Events
from snugfit.run.training.stop_requests import interrupts
from snugfit.tracking.follower import Tracker, TrackingResult
from snugfit.tracking.named import NamedTracker

if TYPE_CHECKING:
    from snugfit.tasks.task import Task

Register = Callable[[str | None], Mapping[str, Any]]
"""Stores the best model of a run, given the tracker's id of it, and says how."""


@dataclass(frozen=True)
class Tracking:
    """The places where a run is tracked.

    Args:
        uri: of MLflow; None for none.
        experiment: that the run belongs to, there and with the others.
        others: trackers that have a name and no address.
        register: stores the best model and says how, given the task, the run's folder, the address, and the tracker's id of the run;
            None registers nothing.
    """

    uri: str | None
    experiment: str = "snugfit"
    others: tuple[NamedTracker, ...] = ()
    register: Callable[[Task, RunFolder, str, str | None], Mapping[str, Any]] | None = None


class Trackers:
    """The trackers that follow a run, from the moment this is made.

    Args:
        tracking: the places; None for none.
        folder: of the run; None where it writes nothing, so that there is nothing to follow.
    """

    def __init__(self, tracking: Tracking | None, folder: RunFolder | None, events: Events) -> None:
        self._folder, self._events = folder, events
        self._mlflow: Tracker | None = None
        self._trackers: list[Tracker] = []
        if tracking is None or folder is None:
            return
        if tracking.uri is not None:
            self._mlflow = Tracker(
                folder.path, uri=tracking.uri, experiment=tracking.experiment, say=self._note
            ).start()
            if self._mlflow.problem:
                events("warning", message=f"{self._mlflow.problem} Events are kept in {folder.events.name}.")
            self._trackers.append(self._mlflow)
        for named in tracking.others:
            tracker = Tracker(
                folder.path,
                uri=named.name,
                experiment=tracking.experiment,
                backend=named.backend(folder.path, live=True),
                say=self._note,
                files=named.files,
            )
            self._trackers.append(tracker.start())

    @property
    def run_id(self) -> str | None:
        """The id of the run in MLflow, once it is known."""
        return None if self._mlflow is None else self._mlflow.run_id

    def close(self) -> None:
        """Send what can be sent soon, and end; a signal to stop ends the wait."""
        self._close(lambda _: None)

    def end(self, register: Register | None, describe: Callable[[], None]) -> bool:
        """Send the last events, register the best model, and say what did not arrive; a signal to stop ends each wait.

        Args:
            describe: writes the report anew, and names it to the trackers: called where there is a registration to add.
        Returns:
            Whether there is more to report than before.
        """
        more = False

        def say(result: TrackingResult) -> None:
            nonlocal more
            message = result.message(self._folder.path if self._folder else "")
            if message is not None:
                self._events("warning", message=message)
                more = True

        if self._mlflow is not None:
            with interrupts():
                sent = self._mlflow.flush()
                if register is not None:
                    self._register(register, sent)
                    describe()
        self._close(say)
        return more

    def _close(self, say: Callable[[TrackingResult], None]) -> None:
        """End all of them at once, so that each has its time, and hear how each ended."""
        for tracker in self._trackers:
            tracker.begin_to_close()
        for tracker in self._trackers:
            with interrupts():
                say(tracker.close())

    def _note(self, text: str) -> None:
        self._events(DOING, text=text)

    def _register(self, register: Register, sent: TrackingResult) -> None:
        if sent.unsent or sent.run_id is None:
            problem = sent.problem or "the tracker is behind"
            self._events("warning", message=f"the best model was not registered: {problem}")
            return
        try:
            self._events("register", **register(sent.run_id))
        except UserError as error:  # of the registry, or of the model as it is loaded again
            self._events("warning", message=f"the best model was not registered: {error}")
        except KeyboardInterrupt:
            self._events("warning", message="the best model was not registered: interrupted.")
