"""The time of an operator on a device, and from that of an update: the slower of its arithmetic and its memory traffic.

Source: Williams, Waterman, Patterson 2009, "Roofline: an insightful visual performance model", doi:10.1145/1498765.1498785.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from snugfit.errors import SettingError
from snugfit.planner.cost.flops import op_class, operator
from snugfit.planner.cost.records import Op
from snugfit.planner.devices.device import Device

Costs = npt.NDArray[np.float64]
"""Seconds that operators take, which add up over operators: of the device, of the link to the host, of the CPU beside the device, of
the host that starts them, and of the link where the device is full and pages come to it and leave."""

NO_COSTS: Costs = np.zeros(5)
"""To which those of operators are added."""


_MEASURED_AS = {"optimizer_update_32bit": "optimizer_update_8bit_blockwise"}
"""What an accelerator takes for an operator that is not measured there: weights too small for 8 bits are updated by the same Python."""


def seconds(op: Op, device: Device, tf32: bool = False) -> float:
    """Return seconds that the device itself is busy with an operator, without the host's part; 0 for a view.

    An accelerator moves memory while it computes, so the slower of both counts; a CPU's core waits for its memory and for the system,
    so they add.

    Args:
        tf32: whether float32 matrix products and convolutions run in TF32, where the device has it.
    Raises:
        SettingError: the device has no arithmetic of the operator's type.
    """
    moved = op.read + op.written
    if not moved:
        return 0.0
    if ">" in op.device:
        return device.host_link.seconds(op.written, back=op.device.endswith(">cpu"))
    numbers = moved / op.dtype.itemsize
    name = operator(op.name)
    if device.kind != "cpu":
        name = _MEASURED_AS.get(name, name)
        curve = device.rates.get(name)
        # less of it takes as long as the least that was measured, which the host decides
        numbers = numbers if curve is None else max(numbers, curve[0][0])
    own = device.rate(name, numbers)
    if own is not None:
        return max(numbers / own, device.launch)
    work = op.flops / _flop_rate(op, device, tf32) if op.flops else 0.0
    # of products the measured rate has it, and a GPU writes little of the memory that its sums have taken
    copied = op.workspace if device.kind == "cpu" and not op.flops else 0
    traffic = traffic_seconds(op.name, op.read, op.written, device, copied)
    return work + traffic if device.kind == "cpu" else max(work, traffic, device.launch)


def costs_of(
    op: Op, device: Device, host: Device | None = None, tf32: bool = False, from_disk: bool = False
) -> Costs:
    """Return what an operator takes of each part of the machine.

    Args:
        host: the CPU beside the device, for operators that run on it, such as those of an offloaded optimizer.
        from_disk: whether what comes to the device is read from a file meanwhile.
    Raises:
        SettingError: the device has no arithmetic of the operator's type, or `host` is wanted and missing.
    """
    moves = op.read + op.written > 0
    around = op.modes * device.mode + op.packed * device.hook + op.calls * device.call
    costs = NO_COSTS.copy()
    costs[3] = (device.host if moves else device.view) + around
    costs[4] = 2 * op.page_bytes / device.host_link.bandwidth
    if ">" in op.device:
        costs[1] = seconds(op, device)
        if from_disk and not op.device.endswith(">cpu"):
            costs[1] = max(costs[1], op.written / device.disk)
    elif device.kind != "cpu" and op.device.startswith("cpu"):
        if host is None:
            raise SettingError(
                "host", f"'{op.name}' runs on the CPU beside {device.name}", "Say which CPU that is."
            )
        costs[2] = seconds(op, host)
    else:
        costs[0] = seconds(op, device, tf32)
    return costs


def pricing(
    device: Device, host: Device | None = None, tf32: bool = False, from_disk: bool = False
) -> Callable[[Op], Costs]:
    """Return `costs_of` for one machine, worked out once for operators that are alike."""
    known: dict[tuple[Any, ...], Costs] = {}

    def costs(op: Op) -> Costs:
        work = op.name, op.device, op.dtype, op.flops, op.read, op.written, op.workspace, op.page_bytes
        kind = (*work, op.modes, op.packed, op.calls)
        if kind not in known:
            known[kind] = costs_of(op, device, host, tf32, from_disk)
        return known[kind]

    return costs


def combined(costs: Costs, device: Device, overlap: bool = False) -> float:
    """Return seconds that added-up costs come to.

    A CPU runs each operator when the host comes to it, so their times add to the host's. Any other device works behind the host, and
    the longer of both counts. A kernel waits for its pages, and the host for the kernel.

    Args:
        overlap: whether copies over the link run beside the operators, as streaming does, and not between them.
    """
    busy, link, on_host, waiting, pages = map(float, costs)
    busy = max(busy, link) if overlap else busy + link
    return on_host + pages + (busy + waiting if device.kind == "cpu" else max(busy, waiting))


def peak_rate(ops: Iterable[Op], device: Device, tf32: bool = False) -> float:
    """FLOP/s of operators that each reach the device's peak for the numbers they compute in; without any, of float32.

    >>> from snugfit.planner.devices.hardware import find_device
    >>> peak_rate([], find_device("t4")) / 1e12
    8.1
    """
    work = taken = 0.0
    for op in ops:
        peak = device.flops.get(_computed_in(op, device, tf32)) if op.flops else None
        if peak is not None:
            work += op.flops
            taken += op.flops / peak
    return work / taken if taken else device.flops["float32"]


def number_type(dtype: torch.dtype, tf32: bool = False) -> str:
    """Return the key of a type of number in `Device.flops`.

    >>> number_type(torch.float8_e4m3fn), number_type(torch.float32, tf32=True)
    ('float8', 'tf32')
    """
    name = str(dtype).removeprefix("torch.")
    if name.startswith("float8"):
        return "float8"
    return {"float32": "tf32" if tf32 else "float32", "uint8": "int8"}.get(name, name)


def _computed_in(op: Op, device: Device, tf32: bool) -> str:
    """Return the key in `Device.flops` of the numbers that an operator multiplies."""
    return number_type(op.dtype, tf32 and "tf32" in device.flops and op_class(op.name) != "attention")


def _flop_rate(op: Op, device: Device, tf32: bool) -> float:
    kind = op_class(op.name)
    dtype = _computed_in(op, device, tf32)
    for name in (operator(op.name), kind):
        measured = device.rate(f"{name}.{dtype}", op.flops)
        if measured is not None:
            return measured
    if dtype not in device.flops:
        raise SettingError(
            "numerics",
            f"{device.name} has no {dtype} arithmetic, in which '{op.name}' would run",
            f"Choose one that it has: {', '.join(sorted(device.flops))}.",
        )
    return device.flops[dtype] * device.efficiency[kind]


def traffic_seconds(name: str, read: int, written: int, device: Device, copied: int = 0) -> float:
    """Return seconds to move an operator's bytes, and on a CPU for the system to map the pages of a new result.

    Args:
        copied: bytes that are written to memory of the kernel's own, and read from there.
    """
    moved = read + written + 2 * copied
    taken = moved / (device.rate("traffic", moved) or device.bandwidth * device.reach)
    made = copied + (0 if operator(name).endswith("_") else written)
    new = device.rate("new", made)
    return taken if new is None else taken + made / new
