"""A hook that notes the CPU time of a run's process with each update, so that a run that was stopped, or killed, still has its whole cost in its events."""

from __future__ import annotations

import time
from typing import Any


def cpu_seconds(_result: Any) -> dict[str, float]:
    """Return the CPU seconds of all threads since this process began: of its own part of the run."""
    return {"cpu_seconds": time.process_time()}
