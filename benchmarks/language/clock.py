"""A hook that notes the CPU time of a run's process with each update, so that a run that was stopped, or killed, still has its whole cost in its events."""

from __future__ import annotations

import os
from typing import Any


def cpu_seconds(_result: Any) -> dict[str, float]:
    """Return the CPU seconds since this process began: of all its threads, and of processes that it has waited for, such as the planner's."""
    return {"cpu_seconds": sum(os.times()[:4])}
