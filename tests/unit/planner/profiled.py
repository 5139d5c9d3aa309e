"""The memory of a computation by torch's profiler, beside which predictions are held."""

from __future__ import annotations

import gc
from collections.abc import Callable

from torch.profiler import ProfilerActivity, profile


def profiled_peak(compute: Callable[[], None]) -> int:
    """Return the most bytes that a computation has allocated at a time on the CPU."""
    gc.collect()  # what goes meanwhile would be taken for its own
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        compute()
    events = [each for each in profiled.profiler.kineto_results.events() if each.name() == "[memory]"]
    now = peak = 0
    for event in sorted(events, key=lambda each: each.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak
