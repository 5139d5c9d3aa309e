"""A recorded run, cut where the step does something else: the most memory, the time and the work of each piece.

A piece is what one block of the model does in one phase of one micro-batch. Pieces of runs that differ in depth or in the number of
micro-batches go together by their keys, which is what `extrapolate` rests on.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from snugfit.planner.cost.records import Op, Parts, Phase, Role, Trace

ROLES = tuple(Role)
Costs = npt.NDArray[np.float64]
"""As `roofline.Costs` has them."""

Bytes = npt.NDArray[np.int64]
"""Bytes by role, in the order of `ROLES`."""

_PASSES = (Phase.FORWARD, Phase.LOSS, Phase.BACKWARD, Phase.EVALUATION)


class Key(NamedTuple):
    """The identity of a piece of the run: `block` is -1 before the first block of a pass, and outside of all passes."""

    update: int
    phase: Phase
    turn: int
    micro_batch: int
    part: int  # how often the phase has been entered in this micro-batch
    block: int


@dataclass(frozen=True)
class Segment:
    """A piece of the run.

    Args:
        peak: bytes by role at its peak, on the device.
        host: bytes on the host at the host's peak.
        operator: of the peak; with the `module` it belongs to.
        costs, flops: of all its operators; `costs` as `roofline.Costs` has them, in seconds.
        names: a hash of the names of its operators, which pieces that do the same have in common.
        copies: of a whole block's frozen weights to the device.
    """

    key: Key
    peak: Bytes
    host: int
    operator: str
    module: str
    costs: Costs
    flops: int
    names: int
    times: int = 1  # how often the run has it
    copies: int = 0

    @property
    def bytes(self) -> int:
        return int(self.peak.sum())


def cut(trace: Trace, device: str, costs: Callable[[Op], Costs]) -> list[Segment]:
    """Return the pieces of a run, in order.

    Args:
        device: whose memory it is about.
        costs: what an operator takes of the device, the link and the host.
    """
    keys = keys_of(trace.ops)
    if not keys:
        return []
    live, host = _curves(trace, device)
    starts = np.array([op.event for op in trace.ops] + [len(trace.events)])
    changes = (place for place in range(1, len(keys)) if keys[place] is not keys[place - 1])
    bounds = [0, *(place for place in changes if keys[place] != keys[place - 1]), len(keys)]
    times = np.array([op.times for op in trace.ops])
    spent = np.array([costs(op) for op in trace.ops]) * times[:, None]
    return [
        _segment(trace, keys[first], range(first, last), starts, live, host, spent)
        for first, last in itertools.pairwise(bounds)
    ]


def copies_of_blocks(ops: Sequence[Op], parts: Parts) -> list[Op]:
    """Return the operators that bring the frozen weights of a block to the device."""
    _, packed = parts.frozen_block
    brought = (op for op in ops if ">" in op.device and not op.device.endswith(">cpu"))
    return [op for op in brought if packed and op.written == packed]


def _segment(
    trace: Trace,
    key: Key,
    places: range,
    starts: npt.NDArray[np.int64],
    live: Bytes,
    host: npt.NDArray[np.int64],
    spent: Costs,
) -> Segment:
    ops = trace.ops[places.start : places.stop]
    begin, end = int(starts[places.start]), int(starts[places.stop])
    window = live[:, begin : end + 1]
    totals = window.sum(axis=0)
    peak = window[:, int(totals.argmax())].copy()
    at = bisect.bisect_right(starts, begin + int(totals.argmax()) - 1, places.start, places.stop) - 1
    workspace = ROLES.index(Role.WORKSPACE)
    for place in places:
        extra = trace.ops[place].workspace
        if not extra:
            continue
        # what the kernel takes stands beside its outputs, before anything is let go after it
        before = int(starts[place]) - begin
        highest = before + int(totals[before : int(starts[place + 1]) - begin + 1].argmax())
        if totals[highest] + extra > peak.sum():
            peak, at = window[:, highest].copy(), place
            peak[workspace] += extra
    op = trace.ops[max(at, places.start)]
    return Segment(
        key,
        peak,
        int(host[begin : end + 1].max()),
        op.name,
        op.place.module,
        spent[places.start : places.stop].sum(axis=0),
        sum(each.flops * each.times for each in ops),
        hash(tuple(each.name for each in ops)),
        copies=len(copies_of_blocks(ops, trace.parts)),
    )


def _curves(trace: Trace, device: str) -> tuple[Bytes, npt.NDArray[np.int64]]:
    """Return bytes by role on the device, and bytes on the host, before each event and after the last."""
    count = len(trace.events)
    numbers = np.abs(np.array(trace.events, dtype=np.int64)) - 1
    signs = np.sign(np.array(trace.events, dtype=np.int64))
    sizes = np.array([storage.bytes for storage in trace.storages], dtype=np.int64)
    number = {role: place for place, role in enumerate(ROLES)}
    roles = np.array([number[storage.role] for storage in trace.storages], dtype=np.int64)
    here = np.array([storage.device == device for storage in trace.storages], dtype=np.int64)
    host = np.array([storage.device == "cpu" for storage in trace.storages], dtype=np.int64)
    changes = signs * sizes[numbers]
    live = np.zeros((len(ROLES), count + 1), dtype=np.int64)
    for place in range(len(ROLES)):
        live[place, 1:] = np.cumsum(changes * here[numbers] * (roles[numbers] == place))
    return live, np.concatenate([[0], np.cumsum(changes * host[numbers])])


def keys_of(ops: Sequence[Op]) -> list[Key]:
    """Return the key of the piece that each operator is in. What lies between two blocks goes to the one before it."""
    keys: list[Key] = []
    entered: dict[tuple[int, Phase, int, int], int] = {}
    last = key = None
    for op in ops:
        now = op.place[:4]
        if now != last or key is None:
            entered[now] = entered.get(now, -1) + 1
            last, key = now, Key(*now, entered[now], -1)
        block = op.place.block
        if block >= 0 and block != key.block and op.place.phase in _PASSES:
            key = key._replace(block=block)
        keys.append(key)
    return keys
