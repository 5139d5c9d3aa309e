"""The length of a run that is to end within a time: decided once, by a rehearsal before its first update."""

from __future__ import annotations

import copy
import gc
import shutil
import time
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.data import Subset

from snugfit.core.job import Hooks, Job, NonFinite
from snugfit.core.random import preserved_elsewhere, preserved_randomness
from snugfit.data.order import total_windows
from snugfit.errors import SettingError
from snugfit.results.run_folder import RunFolder
from snugfit.run.events import DOING
from snugfit.run.spec import RunSpec, TimeLimit
from snugfit.run.training.assemble import assemble
from snugfit.run.training.best import BestInMemory, SaveBest
from snugfit.run.training.stop_requests import StopRequest
from snugfit.strategies.base import Strategy
from snugfit.strategies.process_group import agreed
from snugfit.strategies.registry import strategy_of
from snugfit.system.memory import release_memory
from snugfit.system.processes import this_world
from snugfit.system.rounding import deterministic
from snugfit.tracking.spool import read_events
from snugfit.units import format_seconds

if TYPE_CHECKING:
    from snugfit.run.training.loop import Training
    from snugfit.tasks.task import Task

TIME = "time"
"""The event that records the length that was decided."""

USED = 0.95
"""The part of the time left that is planned for; the rest is for updates that are slower than those measured, and for the report."""

_LEAST_WINDOWS, _MOST_WINDOWS = 4, 200
_MOST_SECONDS, _MOST_SHARE = 10.0, 0.05
_EVALUATION_BATCHES = 8


@dataclass(frozen=True)
class Costs:
    """Seconds that the parts of a run take, and how many updates lie between two evaluations and two checkpoints.

    >>> costs = Costs(start=1.0, update=2.0, evaluation=3.0, checkpoint=0.5, evaluate_every=4, save_every=4)
    >>> costs.seconds(5), costs.updates_within(18.0)
    (18.0, 5)
    """

    start: float
    update: float
    evaluation: float
    checkpoint: float
    evaluate_every: int
    save_every: int

    def seconds(self, updates: int) -> float:
        """Return the seconds of a run of that many updates, which evaluates and saves at its end too."""
        evaluations, checkpoints = -(-updates // self.evaluate_every), -(-updates // self.save_every)
        return (
            self.start + updates * self.update + evaluations * self.evaluation + checkpoints * self.checkpoint
        )

    def updates_within(self, seconds: float, most: int | None = None) -> int:
        """Return the updates of the longest run that takes no more than that, and has no more than `most` updates."""
        if most is None:
            most = max(0, int(seconds / max(self.update, 1e-9)))
        return bisect_right(range(1, most + 1), seconds, key=self.seconds)


@dataclass(frozen=True)
class Length:
    """The length that was decided: `updates` of the `asked_updates` of the run."""

    updates: int
    asked_updates: int
    limit_seconds: float
    costs: Costs

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    def message(self) -> str:
        """Return what was decided, and by which figures, in one line."""
        costs, asked = self.costs, f"{self.asked_updates:,} updates"
        figures = ", ".join(
            f"{_precise(seconds)} {one}"
            for seconds, one in (
                (costs.update, "an update"),
                (costs.evaluation, "an evaluation"),
                (costs.checkpoint, "a checkpoint"),
            )
            if seconds > 0
        )
        takes = f"about {format_seconds(costs.seconds(self.updates))}"
        if self.updates == self.asked_updates:
            return f"all {asked} fit into {format_seconds(self.limit_seconds)}: they take {takes} ({figures})"
        return (
            f"{self.updates:,} of {asked} fit into {format_seconds(self.limit_seconds)}, and the schedule is for those: "
            f"they take {takes} ({figures})"
        )


def fit_to_time(spec: RunSpec, strategy: Strategy, *, resume: bool) -> tuple[RunSpec, Length | None]:
    """Return the run in the length that its time allows, and that length; None where the run has it from before.

    All ranks call it, and decide alike. A rehearsal measures what updates, evaluations and checkpoints take, on a copy of the model and
    in a folder that is removed: the run itself is then the one that has asked for this many updates from the start, bit for bit.

    Args:
        resume: whether the run goes on from a checkpoint, which has settled its length.
    Raises:
        SettingError: the time is too short for a single update, or comes too late.
        UserError: the data or the model cannot be used.
    """
    limit = spec.time
    assert limit is not None
    recorded = strategy.tell(None if strategy.rank > 0 else _recorded(spec.folder))[0]
    if recorded is not None:
        return _of_length(spec, *recorded), None
    if resume:
        raise SettingError(
            "time",
            "the run that is resumed began without it, and its length is settled",
            "Leave it out; stop_after_seconds stops a run after a time.",
        )
    with agreed():
        task = spec.loaded(strategy)
    if spec.display is not None and strategy.rank == 0:
        spec.display({"event": DOING, "text": "measuring updates, evaluations and checkpoints"})
    costs = _slowest(_rehearse(spec, task, limit), strategy)
    asked = total_windows(spec.job, task.material.train)
    left = min(strategy.tell(limit.left()))
    length = Length(costs.updates_within(USED * left, asked), asked, limit.seconds, costs)
    if length.updates == 0:
        least = limit.seconds - left + costs.seconds(1) / USED
        raise SettingError(
            "time",
            f"{format_seconds(limit.seconds)} is too short: one update, its evaluation and its checkpoint end after "
            f"{format_seconds(least)}",
            "Give more time, or evaluate fewer rows.",
        )
    return replace(_of_length(spec, length.updates, asked), load=lambda _: task), length


def _recorded(folder: RunFolder | None) -> tuple[int, int] | None:
    """Return the updates that were decided when the run began, and those that it had asked for."""
    if folder is None or not folder.events.exists():
        return None
    decided = [event for event in read_events(folder.events, raw=True) if event["event"] == TIME]
    return (decided[-1]["updates"], decided[-1]["asked_updates"]) if decided else None


def _of_length(spec: RunSpec, updates: int, asked: int) -> RunSpec:
    # a run that is not shortened keeps its epochs, which its identity says
    return spec if updates == asked else replace(spec, **spec.of_updates(updates))


def _slowest(costs: Costs, strategy: Strategy) -> Costs:
    """Return each figure as the rank has it that takes the longest: the others wait for it."""
    by_rank = strategy.tell(asdict(costs))
    return Costs(**{name: max(each[name] for each in by_rank) for name in asdict(costs)})


class _Windows:
    """The times at which windows were done; asks for a stop when they are enough to measure by."""

    def __init__(self, limit: TimeLimit) -> None:
        self._limit = limit
        self._start = time.monotonic()
        self.training: Training | None = None
        self.times: list[float] = []

    def __call__(self) -> str | None:
        assert self.training is not None
        now = time.monotonic()
        if self.training.step.progress.windows > len(self.times):
            self.times.append(now)
        count, took = len(self.times), now - self._start
        enough = took >= min(_MOST_SECONDS, _MOST_SHARE * self._limit.seconds)
        long_ago = count >= 2 and took > self._limit.seconds / 4
        if (count >= _LEAST_WINDOWS and enough) or count >= _MOST_WINDOWS or long_ago:
            return "measured"
        return None

    def seconds(self) -> float:
        """Return seconds of an update, without those that come first and prepare memory and kernels."""
        steady = self.times[1:] if len(self.times) >= _LEAST_WINDOWS else self.times
        return (steady[-1] - steady[0]) / (len(steady) - 1)


class _TimedSave:
    """A saver of the best model that says what it took."""

    def __init__(self, save: SaveBest) -> None:
        self._save = save
        self.seconds = 0.0

    def __call__(self, model: nn.Module, description: Mapping[str, Any], /, *, trained: nn.Module) -> None:
        start = time.monotonic()
        self._save(model, description, trained=trained)
        self.seconds = time.monotonic() - start


def _rehearse(spec: RunSpec, task: Task, limit: TimeLimit) -> Costs:
    """Return what the parts of a run take, from some windows, evaluations and a checkpoint of it; nothing of them stays."""
    device = torch.device(spec.plan.device)
    with preserved_randomness(device), preserved_elsewhere(), _place(spec) as folder:
        try:
            return _measured(spec, task, limit, folder)
        finally:
            gc.collect()  # a training and its parts know each other
            release_memory(device)


def _measured(spec: RunSpec, task: Task, limit: TimeLimit, folder: RunFolder | None) -> Costs:
    begun = time.monotonic()
    material = task.material
    model, optimizer = copy.deepcopy((material.model, spec.optimizer))  # which keeps them together
    validation, share = material.validation, 1.0
    if validation is not None and len(validation):
        rows = min(len(validation), _EVALUATION_BATCHES * spec.job.evaluation_batch)
        validation, share = Subset(validation, range(rows)), len(validation) / rows
    best = _TimedSave(
        BestInMemory()
        if folder is None
        else lambda *args, trained: task.save_best(folder.best, *args, trained=trained)
    )
    checkpoints: list[float] = []

    def see(kind: str, /, **fields: Any) -> None:
        if kind == "checkpoint":
            checkpoints.append(fields["blocked_seconds"])

    training = assemble(
        _rehearsal(spec.job.grown(), material.train),
        spec.plan,
        replace(material, model=model, validation=validation),
        optimizer,
        spec.techniques,
        spec.metrics,
        folder=folder,
        emit=see,
        save_best=best,
        strategy=strategy_of(spec.plan, this_world()),
    )
    training.fit()
    windows = _Windows(limit)
    windows.training = training
    training.run(StopRequest(asked_for=windows))
    evaluations = []
    with deterministic(training.deterministic):
        for _ in range(2):  # the first one prepares memory and kernels too
            start, before = time.monotonic(), best.seconds
            training.evaluate(StopRequest())
            saved = best.seconds if best.seconds != before else 0.0
            evaluations.append(time.monotonic() - start - saved)
    evaluate_every = spec.job.evaluate.period(training.loader.order.windows_per_pass)
    update = windows.seconds()
    return Costs(
        start=max(0.0, windows.times[0] - begun - update),
        update=update,
        evaluation=max(0.0, evaluations[-1]) * share + best.seconds,
        checkpoint=max(checkpoints, default=0.0),
        evaluate_every=evaluate_every,
        save_every=spec.job.checkpoint.every or evaluate_every,
    )


def _rehearsal(job: Job, data: Any) -> Job:
    """Return the job without evaluations, hooks and rules, and long enough to be stopped before its end."""
    return replace(
        job.for_updates(max(total_windows(job, data), _MOST_WINDOWS + 1)),
        evaluate=replace(job.evaluate, every=_MOST_WINDOWS + 1),
        checkpoint=replace(job.checkpoint, every=None),
        early_stopping=None,
        non_finite=NonFinite("skip", limit=_MOST_WINDOWS),
        hooks=Hooks(),
    )


@contextmanager
def _place(spec: RunSpec) -> Iterator[RunFolder | None]:
    """Temporarily have a folder on the disk that the run's will be on, the same on all ranks; None where it has none."""
    if spec.output is None:
        yield None
        return
    strategy = strategy_of(spec.plan, this_world())
    folder = None
    try:
        with agreed():
            if strategy.rank == 0:
                folder = RunFolder.create(spec.output, spec.name)
        yield RunFolder(type(spec.output)(strategy.tell(None if folder is None else str(folder.path))[0]))
        strategy.tell(None)  # the others have written what they had to
    finally:
        if folder is not None:
            shutil.rmtree(folder.path, ignore_errors=True)
            with suppress(OSError):  # other runs of this name are in it
                folder.path.parent.rmdir()


def _precise(seconds: float) -> str:
    return f"{1000 * seconds:.0f}ms" if seconds < 1 else format_seconds(seconds)
