"""The host's seconds in a training step beside what is computed: for an operator, for a view, for a module, and where Python stands around them."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from snugfit.planner.calibration.microbenchmarks import (
    Work,
    recomputed_step,
    small_step,
    transformer_step,
)
from snugfit.planner.calibration.timing import seconds_of
from snugfit.planner.cost.traffic import read_written
from snugfit.planner.devices.device import Device
from snugfit.planner.trace.python_overhead import Overhead, interposing

_STEP_TIMES = 15
"""How often a small training step is measured, whose time scatters more."""

_DEPTHS = (2, 8)
"""Transformer blocks of the two steps that tell what the call of a module takes."""

_RECOMPUTED = 5
"""Layers of the block that tells what recompute costs the host: as many tensors are saved as in a block of a transformer."""


def host_seconds(device: torch.device) -> tuple[float, float, float]:
    """Return seconds of the host in a training step with autograd: per update, per operator, and per view.

    Two models that differ in depth tell what grows with the operators from what does not.
    """
    x = torch.zeros(4, 4, device=device, requires_grad=True)
    view = seconds_of([x.t], device)
    operators, taken = zip(*(_step_seconds(device, layers, view) for layers in (4, 24)), strict=True)
    each = (taken[1] - taken[0]) / (operators[1] - operators[0])
    return max(taken[0] - each * operators[0], 0.0), each, view


def _step_seconds(device: torch.device, layers: int, view: float) -> tuple[int, float]:
    """Return how many operators a small step has, and what it takes without its views."""
    step = small_step(device, layers)
    count = counted(step)
    return count.operators, _scattering(step, device) - count.views * view


def around_seconds(device: torch.device, known: Device) -> tuple[float, float]:
    """Return seconds of the host for a tensor that a hook is given, and for an operator around which Python has a dispatch mode.

    Recompute has hooks, and where it keeps something modes; what of its time the operators do not account for is theirs.
    """
    left, counts = [], []
    for keep in (None, (), ("matmul",)):
        step = recomputed_step(device, _RECOMPUTED, keep)
        counts.append(count := counted(step))
        left.append(_scattering(step, device) - count.operators * known.host - count.views * known.view)
    hook = max(left[1] - left[0], 0.0) / counts[1].around.packed
    mode = max(left[2] - left[0] - counts[2].around.packed * hook, 0.0) / counts[2].modes
    return hook, mode


def call_seconds(device: torch.device, known: Device) -> float:
    """Return seconds of the host for the call of a module in a step of transformer blocks, beside those of its operators and views.

    Such a step takes longer than its operators do in a small model that has the same few of them again and again: on an H100 by some 0.1 ms
    a module. Each step is waited for, as that is how a run looks at what it came to. Two depths tell what grows with the blocks.
    """
    calls, taken = zip(*(_of_blocks(device, known, layers) for layers in _DEPTHS), strict=True)
    each: float = (taken[1] - taken[0]) / (calls[1] - calls[0])
    return max(each, 0.0)


def _of_blocks(device: torch.device, known: Device, layers: int) -> tuple[int, float]:
    """Return the calls of modules in a step of so many blocks, and what it takes beside its operators and views."""
    step = transformer_step(device, layers)
    count = counted(step)
    taken: list[float] = []
    for _ in range(_STEP_TIMES):
        began = time.perf_counter()
        step()
        if device.type != "cpu":
            torch.accelerator.synchronize(device)
        taken.append(time.perf_counter() - began)
    counted_seconds = count.operators * known.host + count.views * known.view
    return count.calls, statistics.quantiles(taken, n=4)[0] - counted_seconds


def _scattering(step: Work, device: torch.device) -> float:
    """Return seconds of a training step: the lower quartile of several looks."""
    return statistics.quantiles([seconds_of([step], device) for _ in range(_STEP_TIMES)], n=4)[0]


def counted(step: Work) -> _Count:
    """Return what there is in a step that has been done before."""
    step()
    count = _Count()
    entered = register_module_forward_pre_hook(count.called)
    try:
        with count, interposing() as count.around:
            step()
    finally:
        entered.remove()
    return count


class _Count(TorchDispatchMode):
    """The number of operators, views apart, of modes that stand around both, and of calls of modules."""

    around: Overhead

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operators = self.views = self.modes = self.calls = 0

    def called(self, *_: Any) -> None:
        self.calls += 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        moved = any(read_written(func, args, kwargs or {}, out))
        self.operators, self.views = self.operators + moved, self.views + (not moved)
        self.modes += self.around.modes
        return out
