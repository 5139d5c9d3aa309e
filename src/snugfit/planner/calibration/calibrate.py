"""Measures the device at hand, so that the planner's times are about it and not about its data sheet."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from snugfit.kit.precision.product_rounding import products_in
from snugfit.planner.calibration.disk import disk_rate
from snugfit.planner.calibration.host_seconds import around_seconds, call_seconds, host_seconds
from snugfit.planner.calibration.microbenchmarks import (
    Probe,
    Work,
    attention,
    batched_product,
    convolution,
    integer_product,
    operators,
    product,
    recurrence,
    scaled_product,
    traffic,
    transformer_step,
)
from snugfit.planner.calibration.timing import seconds_of
from snugfit.planner.cost.flops import flops_of, op_class, operator
from snugfit.planner.cost.operator_costs import compute_dtype
from snugfit.planner.cost.roofline import number_type, traffic_seconds
from snugfit.planner.cost.traffic import read_written
from snugfit.planner.devices.calibrations import store
from snugfit.planner.devices.device import Curve, Device, Link
from snugfit.planner.devices.hardware import uncalibrated

_TURNS = 8
_SPREAD = 2**26
"""Equal pieces of work take turns: so many, or as many as together move this many bytes, at least 3."""

_SIDES = (128, 256, 512, 1024, 2048, 4096)
_PROBES: tuple[tuple[Probe, tuple[int, ...], tuple[int, ...]], ...] = (
    # the probe, its sizes on a CPU, those on an accelerator
    (product, (32, 64, 128, 256, 512, 1024), _SIDES),
    (batched_product, (8, 64, 256), (64, 512, 4096)),
    (convolution, (1, 8), (8, 64, 256)),
    (attention, (64, 256), (256, 1024, 4096)),
    (recurrence, (16,), (16, 128)),
)
_NARROW: Mapping[str, tuple[torch.dtype, tuple[Probe, ...]]] = {
    # attention of float32 does not round to tf32
    "tf32": (torch.float32, (product, batched_product, convolution, recurrence)),
    "float8": (torch.float8_e4m3fn, (scaled_product,)),
    "int8": (torch.int8, (integer_product,)),
}
"""Further numbers of an accelerator that has units for them: the type that they are stored in, and what is computed in them."""
_SIZES = ((2**13, 2**17, 2**20, 2**23), (2**17, 2**20, 2**23, 2**26))


def calibrate(device: torch.device) -> Device:
    """Measure a device for some 20 seconds, and keep what was found for `this_device`; random numbers are afterwards what they were.

    Of matrix products, convolutions and attention the FLOP/s for each type of number that plans compute in against size; of common
    operators the numbers per second against size; the bandwidth of memory; what the host needs per operator in a training step, and where
    Python stands around it; the link to the host, each way and both at once; the disk.
    On a CPU all of it is for the current number of threads.
    """
    with torch.random.fork_rng([] if device.type == "cpu" else [device]):
        measured = _measured(device)
    store(measured)
    return measured


def _measured(device: torch.device) -> Device:
    known = uncalibrated(device.type)
    disk = disk_rate() or known.disk  # first: a disk that is full is said before all the rest is measured
    if device.type == "cuda":
        known = replace(
            known, reserved=_reserved(known, device)
        )  # before kernels are loaded that no step has
    with torch.no_grad():
        rates = _rates(known, device)
    per_update, per_operator, per_view = host_seconds(device)
    measured = replace(known, rates=rates, update=per_update, host=per_operator, view=per_view)
    hook, mode = around_seconds(device, measured)
    measured = replace(measured, hook=hook, mode=mode, calibrated=True)
    if device.type != "cpu":
        measured = replace(measured, call=call_seconds(device, measured))
    if device.type == "cuda":
        measured = replace(measured, host_link=_link(device, known.host_link), launch=_empty(device))
    return replace(measured, **_summary(measured), disk=disk)


def _summary(device: Device) -> dict[str, Any]:
    """Return what the largest sizes showed, for operators that were not measured themselves.

    Of numbers in which nothing was measured the device reaches what was taken for granted of its data sheet.
    """
    peaks = {
        name.partition(".")[2]: curve[-1][1]
        for name, curve in device.rates.items()
        if name.startswith("matmul.")
    }
    shares = {
        kind: device.rates[f"{kind}.float32"][-1][1] / peaks["float32"]
        for kind in ("convolution", "attention")
    }
    usual = {name: flops * device.efficiency["matmul"] for name, flops in device.flops.items()}
    return {
        "flops": {**usual, **peaks},
        "efficiency": {**device.efficiency, "matmul": 1.0, **shares},
        "bandwidth": device.rates["traffic"][-1][1],
        "reach": 1.0,
    }


def _rates(known: Device, device: torch.device) -> dict[str, Curve]:
    empty = _empty(device) if known.kind == "cpu" else 0.0  # an accelerator works while the next is launched
    points: list[_Point] = []
    for probe, number, dtype, size in _plan(known):
        with products_in("tf32" if number == "tf32" else "ieee"):  # as steps set it: torch convolves in tf32
            points += [_point(each, device, empty, number) for each in _alike(probe, device, dtype, size)]
    traffic = _traffic(points)
    bare = replace(known, rates=traffic)
    alike: dict[str, dict[float, list[float]]] = {}
    for each in points:
        if each.key not in ("mul", "mul_"):
            alike.setdefault(each.key, {}).setdefault(each.size, []).append(each.net(bare))
    curves = {
        key: tuple(sorted((size, size / statistics.mean(taken)) for size, taken in curve.items()))
        for key, curve in alike.items()
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
        """Return the part of its time that was not for moving memory, where roofline adds that again; at least half of it."""
        if not self.flops or device.kind != "cpu":
            return self.seconds
        return max(
            self.seconds - traffic_seconds(self.name, self.read, self.written, device), self.seconds / 2
        )


def _traffic(points: Sequence[_Point]) -> dict[str, Curve]:
    """Return rates of a product of two tensors, made in place and anew: bytes per second, and what the new result adds, per byte of it."""
    new, in_place = (
        {each.read + each.written: each for each in points if each.key == key} for key in ("mul", "mul_")
    )
    plain = [(float(moved), moved / each.seconds) for moved, each in in_place.items()]
    added = {each.written: each.seconds - in_place[moved].seconds for moved, each in new.items()}
    fresh = [(float(written), written / max(seconds, 1e-7)) for written, seconds in added.items()]
    return {"traffic": tuple(sorted(plain)), "new": tuple(sorted(fresh))}


def _point(works: Sequence[Work], device: torch.device, empty: float, number: str) -> _Point:
    return replace(_look(works[0], number), seconds=max(seconds_of(works, device) - empty, 1e-7))


def _look(work: Work, number: str = "") -> _Point:
    last = _Last(tf32=number == "tf32")
    with last:
        work()
    assert last.point is not None
    return last.point


def _plan(known: Device) -> Iterator[tuple[Probe, str, torch.dtype, int]]:
    """Yield what is measured: a probe, the numbers that it computes in, the type that these are stored in, and its size."""
    at = 0 if known.kind == "cpu" else 1
    usual = ("float32", "bfloat16", "float16")[: 3 if at else 2]  # float16's backward on a CPU takes minutes
    types = [name for name in usual if name in known.flops]
    for (probe, *sizes), name in itertools.product(_PROBES, types):
        yield from ((probe, name, getattr(torch, name), size) for size in sizes[at])
    sizes_of = {probe: large for probe, _, large in _PROBES}
    for name, (dtype, probes) in _NARROW.items() if at else ():
        if name in known.flops:
            for probe in probes:
                yield from ((probe, name, dtype, size) for size in sizes_of.get(probe, _SIDES))
    for probe, size in itertools.product((traffic, operators), _SIZES[at]):
        yield probe, "float32", torch.float32, size


def _alike(probe: Probe, device: torch.device, dtype: torch.dtype, size: int) -> Iterator[Sequence[Work]]:
    """Yield each piece of a probe's work several times over, each time on operands of its own."""
    first = list(probe(device, dtype, size))
    point = _look(first[0])
    turns = min(max(_SPREAD // (point.read + point.written), 3), _TURNS)
    return zip(first, *(probe(device, dtype, size) for _ in range(turns - 1)), strict=True)


class _Last(TorchDispatchMode):
    """A mode that remembers the operator with FLOPs, or else the last one that moves data."""

    def __init__(self, tf32: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tf32 = tf32
        self.point: _Point | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        name, flops = str(func), flops_of(func, args, kwargs, out)
        read, written = read_written(func, args, kwargs, out)
        dtype = compute_dtype(func, args, kwargs, out)
        if flops:
            self.point = _Point(_key(name, dtype, self._tf32), name, float(flops), flops, read, written)
        elif read + written and (self.point is None or not self.point.flops):
            self.point = _Point(operator(name), name, (read + written) / dtype.itemsize, 0, read, written)
        return out


def _key(name: str, dtype: torch.dtype, tf32: bool = False) -> str:
    """Return plain products, convolutions and attention stand for their class; backward, batched and recurrent ones for themselves."""
    bare, kind = operator(name), op_class(name)
    of_class = bare in ("mm", "_scaled_mm", "_int_mm", "convolution") or (
        kind == "attention" and "backward" not in bare
    )
    return f"{kind if of_class else bare}.{number_type(dtype, tf32)}"


def _empty(device: torch.device) -> float:
    """Return seconds of an operator with nothing to do, called without autograd."""
    return seconds_of([torch.zeros(1, device=device).relu_], device)


def _reserved(known: Device, device: torch.device) -> int:
    """Return what a process has on the device beside its tensors: the context, the kernels that libraries have loaded, and their workspaces.

    As after a step of transformer blocks. Where others use the device too, it is taken from the data sheet.
    """
    transformer_step(device, 1)()
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    free, whole = torch.cuda.mem_get_info(device)
    taken = whole - free - torch.cuda.memory_reserved(device) + torch.cuda.memory_allocated(device)
    return taken if taken < 2 * known.reserved else known.reserved


def _link(device: torch.device, known: Link) -> Link:
    """Return the way from the host's pinned memory to the device, the way back, and both at once."""
    on_device = [torch.empty(2**26, dtype=torch.uint8, device=device) for _ in range(2)]
    on_host = [torch.empty(2**26, dtype=torch.uint8).pin_memory() for _ in range(2)]
    streams = [torch.cuda.Stream(device) for _ in range(2)]

    def there() -> Tensor:
        return on_device[0].copy_(on_host[0], non_blocking=True)

    def back() -> Tensor:
        return on_host[1].copy_(on_device[1], non_blocking=True)

    def both() -> None:
        current = torch.cuda.current_stream(device)
        for stream, copy in zip(streams, (there, back), strict=True):
            stream.wait_stream(current)
            with torch.cuda.stream(stream):
                copy()
        for stream in streams:
            current.wait_stream(stream)

    rates = [on_device[0].numel() / seconds_of([work], device) for work in (there, back, both)]
    return replace(known, bandwidth=rates[0], back=rates[1], each_of_both=rates[2])
