"""Pitfalls of speed in a few updates of a copy: switches for debugging that are on, and numbers that a micro-batch waits for."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from snugfit.doctor.findings import Certainty, Finding
from snugfit.doctor.observe.recording.attribute_patches import Patches
from snugfit.doctor.observe.recording.internals import profiling_test
from snugfit.doctor.observe.recording.script_frames import is_own, line_in

_READS = ("item", "tolist", "__float__", "__bool__")
_PACKAGE = str(Path(__file__).resolve().parents[1])
LEAST_PASSES = 2


@dataclass
class Speed:
    """Reads and switches that were seen while windows were computed.

    Args:
        passes: forward passes with a graph.
        reads: numbers that the user's own code read from tensors, by line.
        switches: names of what was switched on.
    """

    passes: int = 0
    reads: Counter[str] = field(default_factory=Counter)
    switches: set[str] = field(default_factory=set)


@contextmanager
def speed_seen(model: nn.Module) -> Iterator[Speed]:
    """Temporarily count what the user's own code reads from tensors while a model computes."""
    seen = Speed()
    profiling = profiling_test()

    def count(*_: Any) -> None:
        if torch.is_grad_enabled():
            seen.passes += 1
            if torch.is_anomaly_enabled():
                seen.switches.add("anomaly mode")
            if profiling():
                seen.switches.add("a profiler")

    def reading(original: Any) -> Any:
        def read(tensor: Tensor) -> Any:
            frame = sys._getframe(1)
            file = frame.f_code.co_filename
            if is_own(file) and not file.startswith(_PACKAGE):
                seen.reads[line_in(frame, frame.f_lineno)] += 1
            return original(tensor)

        return read

    hook, patches = model.register_forward_pre_hook(count), Patches()
    for name in _READS:
        patches.wrap(Tensor, name, reading)
    try:
        yield seen
    finally:
        hook.remove()
        patches.undo()


def speed_faults(seen: Speed, device: torch.device) -> Iterator[Finding]:
    """Detect switches that stay on, and numbers that are read in every micro-batch."""
    for name in sorted(seen.switches):
        yield Finding(
            "debugging_left_on",
            Certainty.LIKELY,
            f"{name} is on while the model trains, and keeps a record of every operator",
            evidence=(f"{seen.passes} forward passes",),
            fix="torch.autograd.set_detect_anomaly(False)   # in the module that the recipe names",
        )
    at, times = seen.reads.most_common(1)[0] if seen.reads else ("", 0)
    if seen.passes >= LEAST_PASSES and times >= seen.passes:
        waits = device.type != "cpu"
        yield Finding(
            "device_reads",
            Certainty.LIKELY if waits else Certainty.WORTH_A_LOOK,
            "a number is read from a tensor in every micro-batch"
            + (
                ": each waits for all that the device has to do"
                if waits
                else "; on a GPU each would wait for it"
            ),
            where=at,
            evidence=(f"{times} times in {seen.passes} forward passes",),
            fix="keep it a tensor: torch.where(condition, a, b); value.detach() for what is only logged",
        )
