"""Runs of one recipe with something changed: each is trained in a folder of its own, under one that can be gone on with.

<folder>/
    events.jsonl, found.json, <tool>.html
    <run>/<id>/     a run
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

from snugfit.errors import TrainingFailed, UserError
from snugfit.report.page import replace_page
from snugfit.results.run_folder import RunFolder
from snugfit.results.tool_results import keep
from snugfit.run import from_recipe
from snugfit.run.call_options import RunOptions
from snugfit.run.events import Display
from snugfit.run.training.result import RunResult
from snugfit.run.training.stop_requests import interrupts
from snugfit.tools.many_runs.outcome import Outcome
from snugfit.tracking.cursor import stored_uri
from snugfit.tracking.follower import Tracker
from snugfit.tracking.spool import Spool
from snugfit.tracking.uri import check_uri, resolve_uri

if TYPE_CHECKING:
    from snugfit.recipe import Recipe

Tell = Callable[[str], None]
"""Says a line to people."""
Watch = Callable[[str], AbstractContextManager[Display | None]]
"""Shows one of the runs: is given its title."""


class TrackedRuns:
    """Events of the whole, kept in its folder and sent from there, as those of a run are.

    `uri` is the tracker's address. The first event waits for the tracker, whose id of the whole the runs are given, and so does the
    end; both together no longer than the end of a run does.

    Args:
        kind: of the whole, such as cv.
        described: what the tracker is told of it beside the recipe.
    """

    def __init__(self, recipe: Recipe, folder: RunFolder, kind: str, tell: Tell, **described: Any) -> None:
        self.uri: str | None = None
        self._tracker: Tracker | None = None
        self._recipe, self._folder, self._kind, self._tell = recipe, folder, kind, tell
        self._described = described

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
            self._tell("beginning its run in the tracker …")
            messages: list[str] = []

            def say(text: str) -> None:
                messages.append(text)
                self._tell(text)

            self._tracker = Tracker(self._folder.path, uri=self.uri, experiment=track.experiment, say=say)
            self._tracker.start().flush()
            if self._tracker.interrupted and not messages:  # nobody was told that Ctrl-C ends the wait alone
                error = KeyboardInterrupt("interrupted before its first run")
                self.__exit__(type(error), error, None)
                raise error
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


Change = TypeVar("Change")
"""What tells one of the runs from the others: a fold, a trial."""
Result = TypeVar("Result", bound=Outcome)


@dataclass
class ManyRuns(ABC, Generic[Change, Result]):
    """Runs of one recipe at work in their folder.

    Args:
        options: of each run; the time to stop is that of all of them.
    """

    recipe: Recipe
    folder: RunFolder
    options: RunOptions
    watch: Watch
    tell: Tell
    tool: ClassVar[str]

    @abstractmethod
    def changes(self) -> Iterable[Change]:
        """Return the runs to make, in order."""

    @abstractmethod
    def run_one(self, change: Change) -> str | None:
        """Train one of the runs and keep what came of it; returns the reason to stop, or None to go on with the next."""

    @abstractmethod
    def keep(self, reason: str | None = None) -> Result:
        """Write what is known by now; `reason` says why it was stopped."""

    def described(self) -> Mapping[str, Any]:
        """Return what the tracker is told of the whole beside the recipe."""
        return {}

    def is_done(self) -> bool:
        """Return whether nothing is left to run, so that the tracker is told nothing."""
        return False

    def opened(self) -> AbstractContextManager[object]:
        """Temporarily open what the runs are kept in beside their folders."""
        return nullcontext()

    def run(self, *, new: bool) -> Result:
        """Train all runs that are left.

        Args:
            new: whether the folder was made for this; it is removed where the user's mistake leaves no run in it.
        """
        try:
            with self.folder.claimed(), self.opened():
                return self.keep(None if self.is_done() else self._run_all())
        except UserError:
            if new and not any(self.folder.path.glob("*/*/events.jsonl")):
                self.folder.discard()
            raise

    def _run_all(self) -> str | None:
        """Run what is left; returns why it was stopped before, or None."""
        tracked = TrackedRuns(self.recipe, self.folder, self.tool, self.tell, **self.described())
        with tracked as self.tracked:
            reasons = map(self.run_one, self.changes())
            reason = next((reason for reason in reasons if reason is not None), None)
            tracked.end("finished" if reason is None else "stopped", reason)
        return reason

    def begun(self, name: str) -> Path | None:
        """Return the newest run of a name that can be gone on with."""
        begun = [
            path.parent
            for path in (self.folder.path / name).glob("*/events.jsonl")
            if RunFolder(path.parent).has_checkpoints
        ]
        return max(begun, key=lambda path: path.name, default=None)

    def train(
        self,
        name: str,
        title: str,
        make: Callable[[], Recipe],
        options: RunOptions,
        before: Callable[[Display | None], Display | None] = lambda display: display,
    ) -> RunResult:
        """Train one of the runs, or go on with it where it was begun.

        Args:
            name: of the run, and of the folder that it goes into.
            make: makes its recipe.
            before: returns what sees the run's events, and shows them then.
        Raises:
            TrainingFailed: the run failed.
        """
        begun = self.begun(name)
        options = replace(options, parent=self.tracked.run_id)
        with self.watch(title) as display:
            if begun is not None:
                ended = from_recipe.resume_run(begun, options, before(display))
            else:
                track = replace(self.recipe.track, uri=self.tracked.uri, register=None)
                recipe = replace(make(), name=name, output=str(self.folder.path), track=track)
                ended = from_recipe.train_recipe(recipe, options, before(display))
        if ended.status == "failed":
            raise TrainingFailed(f"{name} failed: {ended.stop_reason}. Its run: {ended.run_dir}")
        return ended

    def about(self, planned: int, reason: str | None) -> dict[str, Any]:
        """Return what every outcome says of itself."""
        return {
            "name": self.recipe.name,
            "planned": planned,
            "folder": str(self.folder.path),
            "stop_reason": reason,
        }

    def write(self, outcome: Result, summary: str, page: str) -> Result:
        """Write what is known by now, for people and for programs."""
        path = self.folder.path
        keep(path, self.tool, {"recipe": self.recipe.hash()}, summary, outcome.as_dict())
        replace_page(path / f"{self.tool}.html", page)
        return outcome
