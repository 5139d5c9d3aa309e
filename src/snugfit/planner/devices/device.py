"""Devices and machines as the planner sees them, whoever they were found by."""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Mapping
from dataclasses import dataclass, field

Curve = tuple[tuple[float, float], ...]
"""A rate against the size of the work, as points in the order of their sizes."""


@dataclass(frozen=True)
class Link:
    """A way between two memories: bytes per second in one direction, seconds before the first byte.

    `back` is the bandwidth of the other direction, where it was measured. `each_of_both` is that of each while both are used, which is
    kept to be compared with: times of both directions are added up.
    """

    name: str
    bandwidth: float
    latency: float
    back: float | None = None
    each_of_both: float | None = None

    def seconds(self, count: int, *, back: bool = False) -> float:
        """Return what it takes to send so many bytes.

        >>> Link("pcie", 10.0, 1.0, back=5.0).seconds(20), Link("pcie", 10.0, 1.0, back=5.0).seconds(20, back=True)
        (3.0, 5.0)
        """
        return self.latency + count / ((self.back if back else None) or self.bandwidth)


@dataclass(frozen=True)
class Device:
    """A device as the planner sees it.

    `flops` maps a type of number ("float32", "tf32", "bfloat16", "float16", "float8", "int8") to the most operations per second, without
    sparsity; one that is missing is not to be used on it. `efficiency` maps a class of operator ("matmul", "convolution", "attention",
    "other") to the share of that which real shapes reach; `bandwidth` is bytes per second of its memory, of which `reach` is reached;
    no kernel takes less than `launch` seconds. `host` seconds pass on the host for each operator: Python's, the dispatcher's and
    autograd's; `view` where it only makes a view; `mode` more for each dispatch mode of Python around it, `hook` for each tensor
    that a hook is given to keep for backward, `call` for each call of a module; and `update` once per update. `reserved` bytes are taken before anything is allocated. `disk` is
    bytes per second of a file that is in no memory yet.

    `rates` is what calibration measured, against size: FLOP/s of "matmul.float32" and the like against FLOPs, numbers per second of
    single operators such as "gelu" against numbers moved, bytes per second of "traffic" and of what a "new" result adds to it against bytes.
    """

    name: str
    kind: str  # "cuda", "cpu", "mps"
    memory_bytes: int
    flops: Mapping[str, float]
    bandwidth: float
    efficiency: Mapping[str, float]
    reach: float
    launch: float
    host: float
    view: float
    mode: float
    hook: float
    update: float
    reserved: int
    host_link: Link
    peer_link: Link
    capability: tuple[int, int] | None = None
    calibrated: bool = False
    disk: float = 1e9
    call: float = 0.0
    rates: Mapping[str, Curve] = field(default_factory=dict)

    @property
    def has_own_memory(self) -> bool:
        """Return whether it has a memory beside the host's: neither a CPU nor Apple's GPU has."""
        return self.kind not in ("cpu", "mps")

    def rate(self, name: str, size: float) -> float | None:
        """Return what was measured under `name` for work of this size; None where it was not."""
        curve = self.rates.get(name)
        return None if curve is None else interpolated(curve, size)


def interpolated(curve: Curve, size: float) -> float:
    """Return the rate at a size: between two points a straight line in logarithms, beyond the ends that of the end.

    >>> round(interpolated(((1.0, 10.0), (100.0, 1000.0)), 10.0), 6)
    100.0
    >>> interpolated(((1.0, 10.0), (100.0, 1000.0)), 1e6)
    1000.0
    """
    above = bisect(curve, size, key=lambda point: point[0])
    if above in (0, len(curve)):
        return curve[max(above - 1, 0)][1]
    (low, at_low), (high, at_high) = curve[above - 1], curve[above]
    part = math.log(size / low) / math.log(high / low)
    return at_low * float((at_high / at_low) ** part)


BASELINE = 600_000_000
"""Bytes that a process is resident with before it trains, where that is not measured: Python, torch, a model's libraries."""


@dataclass(frozen=True)
class Machine:
    """The machine of a plan: a device, and the CPU beside it.

    `type` is the device as torch names it in the dry run; `baseline` is what a process is resident with
    before it trains, in bytes; `expandable_segments` is how its allocator is set.
    """

    device: Device
    host: Device
    type: str = "cpu"
    notes: tuple[str, ...] = ()
    baseline: int = BASELINE
    expandable_segments: bool = False
