"""The time of a piece of work on the device at hand."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence

import torch

from snugfit.planner.calibration.microbenchmarks import Work

POINT_SECONDS = 0.02
"""Spent on each measured point, of which there are some 400."""


def seconds_of(works: Sequence[Work], device: torch.device) -> float:
    """Return seconds of one of several equal pieces of work, which take turns and keep their results until the next, as a step does."""
    results: list[object] = [work() for work in works]
    return _one_by_one(works, results) if device.type == "cpu" else _queued(works, results, device)


def _one_by_one(works: Sequence[Work], results: list[object]) -> float:
    """Return the lower quartile, as what else runs on the machine only adds; with one thread, of the time that it had."""
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    taken: list[float] = []
    end = time.perf_counter() + POINT_SECONDS
    while len(taken) < 4 or time.perf_counter() < end:
        turn = len(taken) % len(works)
        began = clock()
        results[turn] = works[turn]()
        taken.append(clock() - began)
    return statistics.quantiles(taken, n=4)[0]


def _queued(works: Sequence[Work], results: list[object], device: torch.device) -> float:
    """Return the mean over a long queue, since an accelerator works behind the host."""
    times, taken = len(works), 0.0
    while taken < POINT_SECONDS / 2:
        times *= 2
        torch.accelerator.synchronize(device)
        began = time.perf_counter()
        for turn in range(times):
            results[turn % len(works)] = works[turn % len(works)]()
        torch.accelerator.synchronize(device)
        taken = time.perf_counter() - began
    return taken / times
