"""The recorder that all watchers write by: the log, numbers for objects, how closely is looked, and when to stop."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from snugfit.doctor.observe.events.log import LoaderSeen, Log, OptimizerSeen, ParameterSeen, write_log
from snugfit.doctor.observe.events.script_events import (
    Backward,
    Capped,
    Clip,
    Event,
    Rescale,
    ScalerStep,
    Step,
)
from snugfit.doctor.observe.recording.script_frames import forget_callers

if TYPE_CHECKING:
    import torch

_Thing = TypeVar("_Thing")
FLUSH_SECONDS = 5.0
MOST_EVENTS = 200_000
MOST_RENEWALS = 3
"""Optimizers that are made later, whose first updates are looked at one by one too."""
REST_AFTER, REST_EVERY, LOOKED = 64, 16, 2
"""After so many updates, where they take no time, so many of each round are looked at; the others rest."""
REST_SECONDS = 0.02
"""An update that takes longer is looked at whatever it costs, which is little beside it."""
MOST_SLOW = 8
"""So many slow ones in turn are slow by themselves."""
LEAST_STEPS, LONGEST = 3, 4
"""Updates are looked at in detail until each optimizer that steps has made so many steps, and at most so many times as long as said."""
CLOSE_LOOKS = 8
"""After the first updates, one of so many is looked at closely."""
TOO_DEEP = "some calls near Python's limit of recursion"
FRAMES_OF_HIDING = 50
"""More than the contexts take, and the functions they call on their way out."""
PROFILED = "what ran under a profiler, which would count the observer's operations, up to the optimizer step after it"
_UNFINISHED = (Backward, Capped, Clip, Rescale, ScalerStep)
"""Acts that mean something together with the step that ends them."""
WITHOUT_VALUES = "calls on the meta device, where tensors have no values"


class Stop(SystemExit):
    """The observer's time is over: the script ends as by `sys.exit(0)`."""


def _reference(thing: Any) -> Callable[[], Any]:
    """Return what gives an object while it lives; one without weak references, as a range or a list, is kept."""
    try:
        return weakref.ref(thing)
    except TypeError:
        return lambda: thing


def _has_room(frames: int) -> bool:
    """Return whether this many more frames fit under the limit of recursion."""
    try:
        return frames == 0 or _has_room(frames - 1)
    except RecursionError:
        return False


class Guard:
    """Looks of the observer, one inside of the other, hidden from the script, whose failures do not reach it.

    One object for all, and no generator: there are some ten in each update. To leave takes no more frames than to enter did.
    """

    __slots__ = ("_hidden", "_recorder")

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._hidden: list[AbstractContextManager[Any] | None] = []

    def __enter__(self) -> None:
        hidden: AbstractContextManager[Any] | None = None
        try:  # contextlib.suppress would take three frames
            hiding = self._recorder.hiding()
            # to go back out of hiding from modes takes frames, without which torch's overrides would stay off
            if not hasattr(hiding, "gen") or _has_room(FRAMES_OF_HIDING):
                if not self._hidden:  # asked before the modes that tell are hidden
                    self._recorder.traced_outside = self._recorder.tracing()
                hiding.__enter__()
                hidden = hiding
        except RecursionError:
            pass
        self._hidden.append(hidden)
        self._recorder.looking = True

    def __exit__(self, kind: type[BaseException] | None, failure: BaseException | None, _: Any) -> bool:
        hidden = self._hidden.pop()
        self._recorder.looking = bool(self._hidden)
        if not self._hidden:
            self._recorder.traced_outside = ""
        if hidden is not None:
            hidden.__exit__(None, None, None)
        if isinstance(failure, RecursionError):  # the script's own call says so, if it is too deep as well
            if TOO_DEEP not in self._recorder.log.unwatched:
                self._recorder.log.unwatched.append(TOO_DEEP)
            return True
        if isinstance(failure, Exception):  # whatever a script's own classes raise when they are looked at
            self._recorder.failed(failure)
            return True
        return False


class Recorder:
    """The log of one process while it is being written.

    Args:
        updates: of so many updates every parameter is looked at one by one.
        seconds: the script is stopped so long after its first forward pass; None for never.
        path: where the log goes; None keeps it in memory.
        stop_after: the script is interrupted after so many updates; None for never.

    Attributes:
        updates_made: steps of the optimizer that made most, those under a profiler too.
        fewest_steps: of the optimizer that made fewest, of those that made any, as the generator's where a critic makes five for each of its own.
        blind: whether nothing is looked at, since a profiler was seen and no step has followed it.
        optimized: how many parameters were given to optimizers.
        looking: whether the observer is at work now, so that what is called is its own doing.
        traced_outside: how the model ran when the observer began to look, since it hides the modes that tell; "" where as the script says.
        doubled_at: the lines at which a tokenizer was given texts that begin with its special token already, by that token.
        ends: the token that ends a text, its number and its name, in vocabularies of the script's own, by their size.
        infinite_at: the line that last made something infinite, or no number, of numbers that were finite, outside of what is differentiated.
        tables: the lines that last made tables of all pairs of as many numbers, by their shape.
        tokens: those that the model read last.
        source_read: whether the script's source was read for what no function of torch sees.
        waited_for: whether a schedule waits for a score that rises; `scored_losses` are the mean losses of evaluations since it was stepped,
            and their rows.
        raw_scores: the shapes, without the rows, of what binary losses got as logits.
        deviations: where the script took the deviation of data of so many rows, before it trained.
        deviations_taken: how often each line did.
        settings_at: where the settings were made of which a library's trainer makes its schedule; "" outside of it.
        detailed: whether these are still the first updates.
        close: whether this update is looked at closely: one of the first, and then one of eight.
        resting: whether nothing is looked at until the end of this update, one of many fast ones, but for its weights and rows;
            what begins an epoch or an evaluation, or changes what is trained, ends it.
        on_wake: what is called when that ends.
    """

    def __init__(
        self, updates: int, seconds: float | None, path: Path | None, stop_after: int | None = None
    ) -> None:
        from torch.utils.data import get_worker_info  # torch's, which the script imports first

        from snugfit.doctor.observe.recording.internals import hiding, missing_parts, profiling_test, tracing
        from snugfit.doctor.observe.recording.tokens_read import TokensRead

        self._profiling = profiling_test()
        self.tracing, self.hiding = tracing, hiding
        # called where it can say something alone: in processes that were spawned or forked
        self._worker_info = get_worker_info
        self._worker = None if multiprocessing.parent_process() is None else get_worker_info
        self._guard = Guard(self)
        self.looking = self.resting = False
        self.traced_outside = ""
        self.on_wake: Callable[[], None] | None = None
        self._awake_until = self._slow = 0
        self._last_step = 0.0
        self.detailed = self.close = True
        self.optimized = 0
        self.log = Log(rank=int(os.environ.get("RANK", "0")), unwatched=missing_parts())
        self.detailed_updates = updates
        self._seconds = seconds
        self._path = path
        self._begun: float | None = None
        self._flushed = time.monotonic()
        self._thread = threading.get_ident()
        self._numbers: dict[int, tuple[int, Callable[[], Any]]] = {}
        self._next = 1
        self._process = os.getpid()
        forget_callers()
        self._inherited: int | None = None
        self._stop_after = stop_after
        self.quiet = 0
        self.updates_made = self.fewest_steps = 0
        self.blind = False
        self._unseen_updates = 0
        self._steps = self._behind = self._renewed = self._detailed_until = 0
        self.optimizers: dict[int, OptimizerSeen] = {}
        self.loaders: dict[int, LoaderSeen] = {}
        self.parameters: dict[int, ParameterSeen] = {}
        self.frozen_at_build: set[int] = set()
        self.special_tokens: dict[int, str] = {}
        self.doubled_at: dict[int, str] = {}
        self.expected_token = self.infinite_at = self.settings_at = ""
        self.tables: dict[torch.Size, str] = {}
        self.waited_for = self.source_read = False
        self.scored_losses: list[tuple[float, int]] = []
        self.raw_scores: set[torch.Size] = set()
        self.end_tokens: set[int] = set()
        self.ends: dict[int, tuple[int, str] | None] = {}
        self.deviations: dict[int, str] = {}
        self.deviations_taken: dict[str, int] = {}
        self.tokens = TokensRead()

    def number(self, thing: Any) -> int:
        """Return a number for this object, while it lives; 0 for None."""
        if thing is None:
            return 0
        known = self._numbers.get(id(thing))
        if known is None or known[1]() is not thing:
            self._numbers[id(thing)] = known = (self._next, _reference(thing))
            self._next += 1
        return known[0]

    def living(self, kind: type[_Thing]) -> list[_Thing]:
        """Return the objects of a kind that have a number and live."""
        things = [reference() for _, reference in self._numbers.values()]
        return [each for each in things if isinstance(each, kind)]

    def parameter(self, parameter: torch.Tensor, name: str = "") -> ParameterSeen:
        """Return what is known of this parameter."""
        number = self.number(parameter)
        if number not in self.parameters:
            self.parameters[number] = ParameterSeen(
                number,
                name or f"#{number}",
                parameter.numel(),
                parameter.dim(),
                0,
                False,
                parameter.requires_grad,
            )
            self.log.parameters.append(self.parameters[number])
        return self.parameters[number]

    def begin_anew(self) -> None:
        """Look at the coming updates one by one again: an optimizer is made when others have stepped, as where a second model learns."""
        if self._steps and self._renewed < MOST_RENEWALS:
            self._renewed += 1
            self._detailed_until = self._steps + self.detailed_updates
            self.wake()
            self.detailed = self.close = True

    def wake(self) -> None:
        """End the rest, and look at the next updates too."""
        self._awake_until = self._steps + LOOKED
        if self.resting:
            self.resting = False
            if self.on_wake is not None:
                self.on_wake()

    def plan_rest(self) -> None:
        """Decide at the end of a step whether the next update rests.

        Ranks look at the same updates, to be compared, however long each of them takes.
        """
        from torch import distributed

        now = time.monotonic()
        self._slow = (
            0 if now - self._last_step < REST_SECONDS else self._slow + 1
        )  # other processes make some slow
        self._last_step = now
        rests = (
            self.log.updates >= REST_AFTER
            and self._turn % REST_EVERY >= LOOKED
            and self._slow < MOST_SLOW
            and self._steps >= self._awake_until
            and not (self.detailed or self.blind)
            and not (distributed.is_available() and distributed.is_initialized())
        )
        if self.resting and not rests:
            self.resting = False
            if self.on_wake is not None:
                self.on_wake()
        self.resting = rests

    def count_updates(self) -> None:
        """Note that as many updates were made as the optimizer that made most has made, and how closely the next one is looked at."""
        self._behind = self._behind + 1 if self.log.updates == self.updates_made else 0
        self.log.updates = self.updates_made
        self._steps += 1
        seen = self.log.updates - self._unseen_updates
        rare = 0 < self.fewest_steps < LEAST_STEPS and seen < LONGEST * self.detailed_updates
        self.detailed = seen < self.detailed_updates or self._steps < self._detailed_until or rare
        self.close = self.detailed or self._turn % CLOSE_LOOKS == 0

    @property
    def _turn(self) -> int:
        """Return how many updates were made, and steps since by optimizers that have made fewer, as those of a later phase; those that step in turns make one update."""
        return self.log.updates + max(0, self._behind - len(self.optimizers))

    @property
    def rests(self) -> bool:
        """Return whether what happens now belongs to an update that rests; a profiler, which would count the little that is looked at, ends that."""
        if not self.resting or not self.here:
            return False
        if self._profiling():
            self.resting = False
            self._close_eyes()
        return self.resting

    @property
    def here(self) -> bool:
        """Return whether this is the thread that is watched, which alone looks."""
        return threading.get_ident() == self._thread

    @property
    def active(self) -> bool:
        """Return whether what happens now is the script's doing, and can be looked at: not the observer's, a loader's thread, a forked worker.

        What is traced cannot; the log says that there was some.
        """
        if self.quiet or self.blind or self.resting:
            return False
        try:
            if not self.here or os.getpid() != self._process:
                return False
            if self._worker is not None and self._worker() is not None:
                return False
            if self._profiling():
                self._close_eyes()
                return False
            if way := self.traced_outside or self.tracing():
                self.note_traced(way)
        except RecursionError:  # the call that follows says so
            return False
        return not way

    def _close_eyes(self) -> None:
        """Look at nothing until a step ends without a profiler; what of an update was seen means nothing without its rest."""
        self.blind = self.log.profiled = True
        self.unwatched(PROFILED)
        events = self.log.events
        place = max((place for place, event in enumerate(events) if isinstance(event, Step)), default=-1) + 1
        events[place:] = [event for event in events[place:] if not isinstance(event, _UNFINISHED)]

    def opens_eyes(self) -> bool:
        """Return whether the profiler is off at the end of a step, after which everything is looked at again."""
        if not self.blind or self._profiling():
            return False
        self.blind = False
        self._unseen_updates += self.updates_made - self.log.updates
        self.count_updates()
        return True

    def note_traced(self, way: str) -> None:
        """Note a way in which a model is run that cannot be looked at."""
        self.log.traced = sorted({*self.log.traced, way})

    def note_profiled_pass(self) -> None:
        """Count a backward pass that is not looked at for a profiler, and whether one is on still."""
        self.log.passes_unseen += 1
        self.log.passes_profiled += self._profiling()

    def add(self, event: Event) -> None:
        if not self.blind and len(self.log.events) < MOST_EVENTS:
            self.log.events.append(event)
            if len(self.log.events) == MOST_EVENTS:
                self.unwatched(f"what followed {MOST_EVENTS:,} acts of the script")

    def unwatched(self, sentence: str) -> None:
        """Note something that is not looked at, once."""
        if sentence not in self.log.unwatched:
            self.log.unwatched.append(sentence)

    @property
    def forked(self) -> bool:
        """Return whether this process was forked from the one that began to observe, and has done something since."""
        return self._inherited is not None and len(self.log.events) > self._inherited

    def after_fork(self) -> None:
        """Go on in a forked process with what was seen before, in a log of its own: it may be a rank."""
        self._process, self._thread = os.getpid(), threading.get_ident()
        self._worker = self._worker_info
        self._inherited = len(self.log.events)
        if self._path is not None:
            self._path = self._path.with_name(f"{self._process}.json")

    def note_rank(self) -> None:
        """Note the rank of this process, which a spawned or forked one has from its process group alone."""
        from torch import distributed

        if distributed.is_available() and distributed.is_initialized():
            self.log.rank = distributed.get_rank()

    def interrupt_if_enough(self) -> None:
        """Interrupt the script after its last update, as Ctrl-C would: its handlers run.

        Ranks that step together are interrupted after the same update, since each counts its own.
        """
        if self._stop_after is None or self.updates_made < self._stop_after:
            return
        self._stop_after = None
        self.log.stopped = True
        self.flush()
        # a job that a shell has put into the background ignores what nobody else could send it
        if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.raise_signal(signal.SIGINT)

    def tick(self) -> None:
        """Begin the clock; write the log now and then; stop the script when its time is over.

        Raises:
            Stop: so long after the first call.
        """
        now = time.monotonic()
        if self.close:
            self.note_rank()
        if self._begun is None:
            self._begun = now
            if self._path is not None:
                self._path.with_suffix(".begun").touch()
                self.flush()
        if now - self._flushed > FLUSH_SECONDS:
            self.flush()
        if self._seconds is not None and now - self._begun > self._seconds:
            self.log.stopped = True
            self.flush()
            raise Stop(0)

    def guard(self) -> Guard:
        """Return what turns a failure of the observer, for a time, into the end of the observation, which the log says; the script goes on."""
        return self._guard

    def failed(self, failure: Exception) -> None:
        """Note a failure of the observer, and look at nothing any more."""
        if "meta tensor" in str(failure).lower():  # so torch names them where a value is asked for
            self.unwatched(WITHOUT_VALUES)
            return
        self.log.failure = self.log.failure or "".join(traceback.format_exception(failure, limit=-3))
        self.quiet += 1

    def flush(self) -> None:
        """Write the log as it is, unless it is kept in memory."""
        self._flushed = time.monotonic()
        inherited = self._inherited is not None and not self.forked
        if self._path is not None and os.getpid() == self._process and not inherited:
            write_log(self.log, self._path)
