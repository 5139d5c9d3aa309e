"""Measures the device at hand, so that the planner's times are about it and not about its data sheet."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from snugfit.planner.calibrations import store
from snugfit.planner.device import Curve, Device, Link
from snugfit.planner.flops import flops_of, op_class, operator
from snugfit.planner.hardware import uncalibrated
from snugfit.planner.op_costs import compute_dtype
from snugfit.planner.probes import (
    Probe,
    Work,
    attention,
    batched_product,
    convolution,
    operators,
    product,
    recurrence,
    small_step,
    traffic,
)
from snugfit.planner.roofline import number_type, traffic_seconds
from snugfit.planner.traffic import read_written

_POINT_SECONDS = 0.02
"""Spent on each measured point, of which there are some 250."""

_STEP_TIMES = 15
"""How often a small training step is measured, whose time scatters more."""

_TURNS = 8
_SPREAD = 2**26
"""Equal pieces of work take turns: so many, or as many as together move this many bytes, at least 3."""

_PROBES: tuple[tuple[Probe, tuple[int, ...], tuple[int, ...]], ...] = (
    # the probe, its sizes on a CPU, those on an accelerator
    (product, (32, 64, 128, 256, 512, 1024), (128, 256, 512, 1024, 2048, 4096)),
    (batched_product, (8, 64, 256), (64, 512, 4096)),
    (convolution, (1, 8), (8, 64, 256)),
    (attention, (64, 256), (256, 1024, 4096)),
    (recurrence, (16,), (16, 128)),
)
_SIZES = ((2**13, 2**17, 2**20, 2**23), (2**17, 2**20, 2**23, 2**26))


def calibrate(device: torch.device) -> Device:
    """Measure a device for some 20 seconds, and keep what was found for `this_device`.

    Of matrix products, convolutions and attention the FLOP/s for each type of number against size; of common operators the numbers
    per second against size; the bandwidth of memory; what the host needs per operator in a training step; the link to the host.
    On a CPU all of it is for the current number of threads.
    """
    known = uncalibrated(device.type)
    with torch.random.fork_rng([] if device.type == "cpu" else [device]):
        with torch.no_grad():
            rates = _rates(known, device)
        per_update, per_operator, per_view = _host_seconds(device)
    found = replace(known, rates=rates, update=per_update, host=per_operator, view=per_view, calibrated=True)
    if device.type == "cuda":
        found = replace(found, host_link=_link(device, known.host_link), launch=_empty(device))
    found = replace(found, **_summary(found))
    store(found)
    return found


def _summary(device: Device) -> dict[str, Any]:
    """What the largest sizes showed, for operators that were not measured themselves."""
    peaks = {
        name.partition(".")[2]: curve[-1][1]
        for name, curve in device.rates.items()
        if name.startswith("matmul.")
    }
    shares = {
        kind: device.rates[f"{kind}.float32"][-1][1] / peaks["float32"]
        for kind in ("convolution", "attention")
    }
    return {
        "flops": {**device.flops, **peaks},
        "efficiency": {**device.efficiency, "matmul": 1.0, **shares},
        "bandwidth": device.rates["traffic"][-1][1],
        "reach": 1.0,
    }


def _rates(known: Device, device: torch.device) -> dict[str, Curve]:
    empty = _empty(device) if known.kind == "cpu" else 0.0  # an accelerator works while the next is launched
    works = (each for probe, dtype, size in _plan(known) for each in _alike(probe, device, dtype, size))
    points = [_point(each, device, empty) for each in works]
    traffic = _traffic(points)
    bare = replace(known, rates=traffic)
    alike: dict[str, dict[float, list[float]]] = {}
    for each in points:
        if each.key not in ("mul", "mul_"):
            alike.setdefault(each.key, {}).setdefault(each.size, []).append(each.net(bare))
    curves = {
        key: tuple(sorted((size, size / statistics.mean(taken)) for size, taken in found.items()))
        for key, found in alike.items()
    }
    return traffic | curves


@dataclass(frozen=True)
class _Point:
    """An operator that was timed: its key in `Device.rates`, its name, and its size in FLOPs or, without those, in numbers moved."""

    key: str
    name: str
    size: float
    flops: int
    read: int
    written: int
    seconds: float = 0.0

    def net(self, device: Device) -> float:
        """Of its time what was not for moving memory, where roofline adds that again; at least half of it."""
        if not self.flops or device.kind != "cpu":
            return self.seconds
        return max(
            self.seconds - traffic_seconds(self.name, self.read, self.written, device), self.seconds / 2
        )


def _traffic(points: Sequence[_Point]) -> dict[str, Curve]:
    """Of a product of two tensors, made in place and anew: bytes per second, and what the new result adds, per byte of it."""
    new, in_place = (
        {each.read + each.written: each for each in points if each.key == key} for key in ("mul", "mul_")
    )
    plain = [(float(moved), moved / each.seconds) for moved, each in in_place.items()]
    added = {each.written: each.seconds - in_place[moved].seconds for moved, each in new.items()}
    fresh = [(float(written), written / max(seconds, 1e-7)) for written, seconds in added.items()]
    return {"traffic": tuple(sorted(plain)), "new": tuple(sorted(fresh))}


def _point(works: Sequence[Work], device: torch.device, empty: float) -> _Point:
    return replace(_look(works[0]), seconds=max(_seconds(works, device) - empty, 1e-7))


def _look(work: Work) -> _Point:
    last = _Last()
    with last:
        work()
    assert last.point is not None
    return last.point


def _plan(known: Device) -> Iterator[tuple[Probe, torch.dtype, int]]:
    at = 0 if known.kind == "cpu" else 1
    usual = ("float32", "bfloat16", "float16")[: 3 if at else 2]  # float16's backward on a CPU takes minutes
    types = [getattr(torch, name) for name in usual if name in known.flops]
    for (probe, *sizes), dtype in itertools.product(_PROBES, types):
        yield from ((probe, dtype, size) for size in sizes[at])
    for probe, size in itertools.product((traffic, operators), _SIZES[at]):
        yield probe, torch.float32, size


def _alike(probe: Probe, device: torch.device, dtype: torch.dtype, size: int) -> Iterator[Sequence[Work]]:
    """Each piece of a probe's work several times over, each time on operands of its own."""
    first = list(probe(device, dtype, size))
    point = _look(first[0])
    turns = min(max(_SPREAD // (point.read + point.written), 3), _TURNS)
    return zip(first, *(probe(device, dtype, size) for _ in range(turns - 1)), strict=True)


class _Last(TorchDispatchMode):
    """Of what runs within: the operator with FLOPs, or else the last one that moves data."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.point: _Point | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name, flops = str(func), flops_of(func, args, kwargs, out)
        read, written = read_written(func, args, kwargs, out)
        dtype = compute_dtype(func, args, kwargs, out)
        if flops:
            self.point = _Point(_key(name, dtype), name, float(flops), flops, read, written)
        elif read + written and (self.point is None or not self.point.flops):
            self.point = _Point(operator(name), name, (read + written) / dtype.itemsize, 0, read, written)
        return out


def _key(name: str, dtype: torch.dtype) -> str:
    """Plain products, convolutions and attention stand for their class; backward, batched and recurrent ones for themselves."""
    bare, kind = operator(name), op_class(name)
    of_class = bare in ("mm", "convolution") or (kind == "attention" and "backward" not in bare)
    return f"{kind if of_class else bare}.{number_type(dtype)}"


def _host_seconds(device: torch.device) -> tuple[float, float, float]:
    """Seconds of the host in a training step with autograd: per update, per operator, and per view.

    Two models that differ in depth tell what grows with the operators from what does not.
    """
    x = torch.zeros(4, 4, device=device, requires_grad=True)
    view = _seconds([x.t], device)
    operators, taken = zip(*(_step_seconds(device, layers, view) for layers in (4, 24)), strict=True)
    each = (taken[1] - taken[0]) / (operators[1] - operators[0])
    return max(taken[0] - each * operators[0], 0.0), each, view


def _step_seconds(device: torch.device, layers: int, view: float) -> tuple[int, float]:
    """How many operators a small step has, and what it takes without its views."""
    step = small_step(device, layers)
    step()
    with _Count() as count:
        step()
    taken = statistics.median(_seconds([step], device) for _ in range(_STEP_TIMES))
    return count.operators, taken - count.views * view


class _Count(TorchDispatchMode):
    """How many operators there are within, views apart."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operators = self.views = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        moved = any(read_written(func, args, kwargs or {}, out))
        self.operators, self.views = self.operators + moved, self.views + (not moved)
        return out


def _empty(device: torch.device) -> float:
    """Seconds of an operator with nothing to do, called without autograd."""
    return _seconds([torch.zeros(1, device=device).relu_], device)


def _link(device: torch.device, known: Link) -> Link:
    """The way from the host's pinned memory to the device."""
    there, here = (
        torch.empty(2**26, dtype=torch.uint8, device=device),
        torch.empty(2**26, dtype=torch.uint8).pin_memory(),
    )
    taken = _seconds([lambda: there.copy_(here, non_blocking=True)], device)
    return replace(known, bandwidth=there.numel() / taken)


def _seconds(works: Sequence[Work], device: torch.device) -> float:
    """Seconds of one of several equal pieces of work, which take turns and keep their results until the next, as a step does."""
    kept: list[object] = [work() for work in works]
    return _one_by_one(works, kept) if device.type == "cpu" else _queued(works, kept, device)


def _one_by_one(works: Sequence[Work], kept: list[object]) -> float:
    """The median; with one thread, of the time that it had, which leaves out what else runs on the machine."""
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    taken: list[float] = []
    end = time.perf_counter() + _POINT_SECONDS
    while len(taken) < 4 or time.perf_counter() < end:
        turn = len(taken) % len(works)
        began = clock()
        kept[turn] = works[turn]()
        taken.append(clock() - began)
    return statistics.median(taken)


def _queued(works: Sequence[Work], kept: list[object], device: torch.device) -> float:
    """The mean over a long queue, since an accelerator works behind the host."""
    times, taken = len(works), 0.0
    while taken < _POINT_SECONDS / 2:
        times *= 2
        torch.accelerator.synchronize(device)
        began = time.perf_counter()
        for turn in range(times):
            kept[turn % len(works)] = works[turn % len(works)]()
        torch.accelerator.synchronize(device)
        taken = time.perf_counter() - began
    return taken / times
