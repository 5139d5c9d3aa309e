"""The state of a run, read from its events."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_SMOOTHING = 0.05


@dataclass(slots=True)
class Standing:
    """Counters, loss and pace of a run, and what its hook has logged last.

    `loss` is smoothed, for a line that is drawn often.
    """

    run: Mapping[str, Any] = field(default_factory=dict)
    window: int = 0
    update: int = 0
    epoch: float = 0.0
    learning_rate: float = math.nan
    loss: float = math.nan
    logged: Mapping[str, float] = field(default_factory=dict)
    seconds_per_example: float = math.nan
    first_window: int = 0
    first_time: float | None = None
    began: float = field(default_factory=time.monotonic)

    def take(self, event: Mapping[str, Any], now: float) -> None:
        """Take in an update; it is on the way of every step, so it does no more than it must."""
        metrics = event["metrics"]
        self.window, self.update, self.epoch = event["window"], event["update"], event["epoch"]
        self.learning_rate = metrics["learning_rate"]
        loss = metrics["loss"]
        if "logged" in event:
            self.logged = {name: metrics[name] for name in event["logged"]}
        pace = 1.0 / (metrics["examples_per_second"] or math.inf)
        if self.first_time is None:
            self.first_time, self.first_window = now, self.window
            self.seconds_per_example = pace
        else:
            self.seconds_per_example += (pace - self.seconds_per_example) * _SMOOTHING
        if not event.get("applied", True):
            return  # a window that was refused is no part of what was learned
        step = (loss - self.loss) * _SMOOTHING
        if math.isfinite(step):
            self.loss += step
        elif not math.isfinite(self.loss):
            self.loss = loss

    @property
    def total(self) -> int:
        return int(self.run.get("total_updates") or 0)

    def seconds_spent(self) -> float:
        """Return the time since the run was described."""
        return time.monotonic() - self.began

    def seconds_left(self, now: float | None = None) -> float | None:
        """Return the predicted time to the end: what is left at the pace so far, evaluations counted."""
        done = self.window - self.first_window
        if done <= 0 or not self.total or self.first_time is None:
            return None
        now = time.monotonic() if now is None else now
        return (now - self.first_time) / done * max(0, self.total - self.window)
