"""The pruner: it stops the run of a trial that is behind the others of its search."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from snugfit.run.events import Display
from snugfit.tools.tune.study import Study


class Pruning:
    """Sees the events of a trial's run; `reason` says why it should stop, once an evaluation puts it behind the others.

    The decision is kept before the run stops, so that a search that is killed in between decides nothing else.
    """

    def __init__(self, study: Study, metric: str, every: int | str) -> None:
        self.reason: str | None = None
        self.run_dir: str | None = None
        self._study, self._metric = study, metric
        self._every = every
        self._windows = 0

    def before(self, display: Display | None) -> Display:
        """Return what sees an event first, and shows it then."""

        def see(event: dict[str, Any]) -> None:
            self._see(event)
            if display is not None:
                # the search goes on with other trials, so nobody is told to go on with this one
                pruned = event["event"] == "end" and self.reason is not None
                display({**event, "resumable": False} if pruned else event)

        return see

    def _see(self, event: Mapping[str, Any]) -> None:
        if event["event"] == "run":
            self.run_dir, self._windows = event["run_dir"], event["total_updates"]
        elif event["event"] == "evaluation" and self.reason is None:
            # by its place in the run: after going on, some are reported again
            place = event["epoch"] if self._every == "epoch" else event["window"] / int(self._every)
            number = math.ceil(place)
            value = event["metrics"][self._metric]
            behind = self._study.report(number, value)
            if behind and event["window"] < self._windows:
                self.reason = (
                    f"pruned at evaluation {number}: {self._metric} {value:.4g} is behind the other trials"
                )
                self._study.tell_to_stop(self.reason)
