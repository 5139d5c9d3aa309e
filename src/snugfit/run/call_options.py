"""The options of one call beside the recipe that it runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from snugfit.errors import SettingError
from snugfit.planner.worker import Watch, ignore

if TYPE_CHECKING:
    from snugfit.planner.worker import Worker
    from snugfit.tasks.prepare import Sides


def no_line() -> AbstractContextManager[Watch]:
    """Show nothing of a search."""
    return nullcontext(ignore)


@dataclass(frozen=True)
class RunOptions:
    """Options of a run.

    Args:
        time_seconds: the length of the run is cut to what ends within this time, and the run stops when it is over.
        plan: search for a plan before the run begins; `replan` searches even where a plan is in the cache.
        plans: a folder of plans of recipes that name code, for several runs of one process.
        search_line: shows, while it lasts, how far the search is.
        worker: the planner's process, where one was started before it is asked.
        tight: on a CPU, give memory that tensors no longer need back to the system at once, which takes time.
        sides: rows of Python data to train on and to validate on.
        parent: the tracker's run that this one is a part of.
        stop: asked after every window; the reason to stop, or None.
        into: the folder that whoever started the process has made; a run that has a checkpoint there goes on from it.
        accept_changes: what may differ from the run that is resumed, by the names of its identity.
    """

    stop_after_seconds: float | None = None
    time_seconds: float | None = None
    fast_dev_run: bool = False
    overfit_batches: int | None = None
    plan: bool = False
    tight: bool = False
    sides: Sides | None = None
    parent: str | None = None
    stop: Callable[[], str | None] = lambda: None
    into: Path | None = None
    replan: bool = False
    plans: Path | None = None
    accept_changes: tuple[str, ...] = ()
    search_line: Callable[[], AbstractContextManager[Watch]] = no_line
    worker: Worker | None = None
    started: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        if self.is_smoke and self.time_seconds is not None:
            raise SettingError(
                "--time",
                "shortens a run, and --fast-dev-run and --overfit-batches are as short as they are",
                "Leave one of them out.",
            )
        if self.fast_dev_run and self.overfit_batches is not None:
            raise SettingError(
                "--fast-dev-run", "it and --overfit-batches are two different runs", "Give one of them."
            )

    @property
    def ends_after_seconds(self) -> float | None:
        """Return the time after which the run saves and stops."""
        limits = [each for each in (self.stop_after_seconds, self.time_seconds) if each is not None]
        return min(limits, default=None)

    @property
    def is_smoke(self) -> bool:
        """Return whether it is a smoke run, which is cut short and neither planned nor tracked."""
        return self.fast_dev_run or self.overfit_batches is not None
