"""A run that has not begun, as recipes and calls from Python ask for it: `RunSpec`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from snugfit.core.job import Job, Plan
from snugfit.core.technique import Technique
from snugfit.results.run_folder import RunFolder
from snugfit.run.events import Display
from snugfit.run.trackers import Tracking
from snugfit.run.training.loop import Training
from snugfit.run.training.result import RunResult
from snugfit.run.training.stop_requests import StopRequest
from snugfit.step.metrics.metric import AnyMetric
from snugfit.strategies.base import Strategy
from snugfit.system.garbage import done_loading
from snugfit.system.rounding import fix_sums
from snugfit.tasks.task import Task

TIMEOUT_SECONDS = 1800.0
"""That a rank waits for the others before it gives up; in recipes plan.timeout."""


@dataclass(frozen=True)
class TimeLimit:
    """A time that a run is to end within, from `started`, a `time.monotonic()`."""

    seconds: float
    started: float

    def left(self) -> float:
        """Return seconds until the time is over."""
        return self.seconds - (time.monotonic() - self.started)


@dataclass(frozen=True, kw_only=True)
class RunSpec:
    """A run that has not begun: what is trained, how it fits, where it is written and who follows it. Nothing is loaded yet.

    Args:
        load: reads model and data; given how ranks share the model, as each may read its part alone.
        optimizer: of torch, over the parameters of the model; None where a technique makes it.
        identity: settings that decide the updates, which a resume compares.
        same: what all ranks must have been given alike, compared before anything is loaded.
        recipe: the settings, for the run's events and its checkpoints.
        inputs: describes the sources of rows, given what was loaded and the run that was made of it.
        output: the folder in which the run's own is made; None writes nothing, and the best model is kept in memory.
        folder: the run's own folder, where there is one already; `resume` goes on from its newest checkpoint.
        begin: writes what a new folder begins with; without it the folder keeps no settings and no digests of files.
        accept_changes: names of the identity that may differ from the checkpoint's.
        parent: the tracker's run that this one is a part of.
        notes, warnings: said once, when the run is.
        predicted: of the plan, to be compared with what comes of it.
        tight: on a CPU, give memory that tensors no longer need back to the system at once, which takes time.
        details: whether the best evaluation is kept in detail, for the report.
        time: shortens the run to what fits into it; `of_updates` returns the fields that are others in a run of that many updates.
        smoke: the option that makes it a smoke run, which ends before the recipe does, so that nothing goes on from it; None of others.
        shorten: changes the job and what was loaded for it; `conclude` looks at the run and adds to its result before its end is said.
    """

    name: str
    job: Job
    plan: Plan
    techniques: Sequence[Technique]
    load: Callable[[Strategy], Task]
    metrics: Mapping[str, AnyMetric] = field(default_factory=dict)
    optimizer: torch.optim.Optimizer | None = None
    identity: Mapping[str, Any] = field(default_factory=dict)
    same: Mapping[str, Any] = field(default_factory=dict)
    recipe: Mapping[str, Any] = field(default_factory=dict)
    inputs: Callable[[Task, Training], list[dict[str, Any]]] = lambda *_: []
    output: Path | None = Path("runs")
    folder: RunFolder | None = None
    resume: bool = False
    begin: Callable[[RunFolder], None] | None = None
    accept_changes: Sequence[str] = ()
    tracking: Tracking | None = None
    parent: str | None = None
    display: Display | None = None
    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()
    predicted: Mapping[str, Any] | None = None
    tight: bool = False
    stop: StopRequest = field(default_factory=StopRequest)
    timeout_seconds: float = TIMEOUT_SECONDS
    details: bool = False
    time: TimeLimit | None = None
    of_updates: Callable[[int], Mapping[str, Any]] = lambda _: {}
    smoke: str | None = None
    shorten: Callable[[Job, Task], tuple[Job, Task]] = lambda job, task: (job, task)
    conclude: Callable[[Training, RunResult], RunResult] = lambda _training, result: result

    def loaded(self, strategy: Strategy | None = None) -> Task:
        """Return model and data, on one of several ranks as its strategy has it.

        Raises:
            UserError: the data or the model cannot be used.
        """
        if self.plan.device == "cpu":
            fix_sums()  # before code of the user's asks MKL for anything, such as the cosines of a data set
        task = self.load(strategy or Strategy())
        done_loading()
        return task
