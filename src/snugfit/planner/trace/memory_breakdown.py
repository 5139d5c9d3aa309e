"""The breakdown of an update's memory, from its recorded trace: over time by kind, its spikes, and the pieces at one moment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from snugfit.planner.answers.answer import Timeline
from snugfit.planner.cost.records import Op, Phase, Role, Trace
from snugfit.planner.trace.dry_run import longest_rows
from snugfit.planner.trace.memory_snapshot import snapshot
from snugfit.planner.trace.real_run import Recorded, record_gradients, record_scoring
from snugfit.step.attempt import Attempt, Doing
from snugfit.step.micro_batch_sizes import legal_sizes
from snugfit.step.step import Step
from snugfit.system.memory import release_memory

MOST_SPIKES = 5
MOST_PIECES = 12
_ROLES = tuple(Role)
_UPDATE = frozenset(Phase) - {Phase.SETUP, Phase.PRIME, Phase.EVALUATION, Phase.SAVE}
"""Phases of an update."""

Bytes = npt.NDArray[np.int64]
"""Bytes by role, in the order of `Role`; by role and point."""


@dataclass(frozen=True)
class Piece:
    """The memory of one module and purpose: bytes of `count` tensors, and the operator that made most of them.

    `module` is a dotted name, "" where it belongs to no module or to the model itself.
    """

    kind: str
    module: str
    bytes: int
    count: int
    operator: str


@dataclass(frozen=True)
class Spike:
    """A moment at which memory is higher than around it: where, after which operator, and which kind it is made of most."""

    bytes: int
    segment: str
    module: str
    operator: str
    kind: str


@dataclass(frozen=True)
class MemoryUse:
    """The memory of one update, or of what is named in `of`.

    Args:
        basis: "measured" on tensors as they were made and let go, or "predicted".
        pieces: what is there at the moment that `at` names, the largest first: where memory ran out, else at the peak.
        ran_out: what the allocator said, where memory ran out.
    """

    basis: str
    peak_bytes: int
    at_bytes: int
    by_kind: Mapping[str, int]
    at: Mapping[str, str]  # segment, module, operator
    pieces: tuple[Piece, ...]
    spikes: tuple[Spike, ...]
    timeline: Timeline = field(repr=False)
    ran_out: str | None = None
    of: str = "an update"

    @property
    def culprit(self) -> Piece | None:
        """The largest piece; None where there is nothing."""
        return next(iter(self.pieces), None)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, without the timeline, which is for pictures."""
        return {
            "basis": self.basis,
            "peak_bytes": self.peak_bytes,
            "at_bytes": self.at_bytes,
            "by_kind": dict(self.by_kind),
            "at": dict(self.at),
            "pieces": [vars(piece) for piece in self.pieces],
            "spikes": [vars(spike) for spike in self.spikes],
            "ran_out": self.ran_out,
        }


def memory_use(
    trace: Trace,
    device: str,
    basis: str,
    modules: Mapping[int, str] | None = None,
    ran_out: str | None = None,
    evaluation: bool = False,
) -> MemoryUse:
    """Return what an update takes of a device's memory.

    Args:
        device: the type of the device, such as "cpu".
        modules: of storages that no operator made, by their numbers.
        evaluation: what scoring takes instead.
    """
    live = _live(trace, device)
    points = _points(trace, live, {Phase.EVALUATION} if evaluation else _UPDATE)
    if not points:  # nothing ran: what is there all the time
        before = "before the evaluation" if evaluation else "before the update"
        points = [_Point(len(trace.events), before, "", "", live[:, -1])]
    peak = max(points, key=lambda point: point.total)
    at = peak if ran_out is None else points[-1]
    return MemoryUse(
        basis,
        peak.total,
        at.total,
        _by_kind(at.bytes),
        {"segment": at.segment, "module": at.module, "operator": at.operator},
        _pieces(trace, device, at.event, modules or {}),
        _spikes(points),
        _timeline(points),
        ran_out,
        "an evaluation" if evaluation else "an update",
    )


class Failure(NamedTuple):
    """The memory where an attempt runs out of it, or at its peak, and what was run `again` to see that, in words."""

    use: MemoryUse
    again: str


def memory_of_failure(step: Step, attempt: Attempt, folder: Path | None) -> Failure:
    """Run once more what failed for want of memory, and look at what takes it.

    Of a window that is forward and backward, of an evaluation the scoring of single examples, and where no micro-batch was found
    two of the smallest, which were run before. The step stays where it is. On CUDA `folder`, where there is one, also gets the allocator's own
    record, for PyTorch's memory viewer.
    """
    release_memory(step.device)  # of what the failed attempt has left
    with nullcontext() if folder is None else snapshot(step.device, folder):
        recorded, again = _run_again(step, attempt)
    arguments = recorded.trace, step.device.type, "measured", recorded.modules, recorded.ran_out
    return Failure(memory_use(*arguments, evaluation=attempt.doing is Doing.EVALUATION), again)


def _run_again(step: Step, attempt: Attempt) -> tuple[Recorded, str]:
    window = attempt.batch
    if attempt.doing is Doing.EVALUATION:
        return record_scoring(step, window), "the scoring of one example after the other"
    if attempt.doing is Doing.UPDATE:
        return record_gradients(step, window), "forward and backward of the window"
    group = step.seams.batch(window.to(step.device), step.progress, step.seed).group
    size = legal_sizes(step, window.rows, group)[-1]
    # of two micro-batches the second meets the gradients of the first
    some, before = longest_rows(window, min(window.rows, 2 * size)), step.micro_batch
    step.micro_batch = size
    try:
        recorded = record_gradients(step, some)
    finally:
        step.micro_batch = before
    return recorded, f"forward and backward of {some.rows} examples in micro-batches of {size}"


class _Point(NamedTuple):
    """The highest moment of one operator: after so many events, where, and the bytes by role."""

    event: int
    segment: str
    module: str
    operator: str
    bytes: Bytes

    @property
    def total(self) -> int:
        return int(self.bytes.sum())


def _live(trace: Trace, device: str) -> Bytes:
    """Return bytes by role after each number of events."""
    live = np.zeros((len(_ROLES), len(trace.events) + 1), dtype=np.int64)
    for place, (_, storage, sign) in enumerate(trace.changes(), 1):
        if storage.device == device:
            live[_ROLES.index(storage.role), place] = sign * storage.bytes
    return np.cumsum(live, axis=1)


def _points(trace: Trace, live: Bytes, wanted: AbstractSet[Phase]) -> list[_Point]:
    totals, points = live.sum(axis=0), []
    ends = [op.event for op in trace.ops[1:]] + [len(trace.events)]
    for op, end in zip(trace.ops, ends, strict=False):  # of no operators there is one end
        if op.place.update != 0 or op.place.phase not in wanted:
            continue
        event = op.event + int(totals[op.event : end + 1].argmax())
        bytes_ = live[:, event].copy()
        # a kernel's own room stands beside what it puts out
        bytes_[_ROLES.index(Role.WORKSPACE)] += op.workspace
        points.append(_Point(event, _segment(op), op.place.module, op.name, bytes_))
    return points


def _segment(op: Op) -> str:
    number = op.place.micro_batch
    return f"{op.place.phase} {number + 1}" if number >= 0 else str(op.place.phase)


def _by_kind(sizes: Bytes) -> dict[str, int]:
    return {str(role): int(size) for role, size in zip(_ROLES, sizes, strict=True) if size}


def _pieces(trace: Trace, device: str, event: int, modules: Mapping[int, str]) -> tuple[Piece, ...]:
    alive: set[int] = set()
    for number, storage, sign in list(trace.changes())[:event]:
        if storage.device == device and storage.bytes:
            (alive.add if sign > 0 else alive.discard)(number)
    sizes: Counter[tuple[str, str]] = Counter()
    counts: Counter[tuple[str, str]] = Counter()
    makers: dict[tuple[str, str], Counter[str]] = {}
    for number in alive:
        storage = trace.storages[number]
        op = trace.ops[storage.op] if storage.op >= 0 else None
        key = str(storage.role), op.place.module if op is not None else modules.get(number, "")
        sizes[key] += storage.bytes
        counts[key] += 1
        makers.setdefault(key, Counter())[op.name if op is not None else ""] += storage.bytes
    return tuple(
        Piece(*key, size, counts[key], makers[key].most_common(1)[0][0])
        for key, size in sizes.most_common(MOST_PIECES)
    )


def _spikes(points: list[_Point]) -> tuple[Spike, ...]:
    """Return the highest moment of each module in each segment, as far as it is higher than the moments beside it."""
    base = np.min([point.bytes for point in points], axis=0)
    spikes: dict[tuple[str, str], _Point] = {}
    for before, point, after in zip([None, *points], points, [*points[1:], None], strict=False):
        neighbours = [other.total for other in (before, after) if other is not None]
        key = point.segment, point.module
        if all(point.total >= other for other in neighbours) and (
            key not in spikes or point.total > spikes[key].total
        ):
            spikes[key] = point
    highest = sorted(spikes.values(), key=lambda point: -point.total)[:MOST_SPIKES]
    return tuple(
        Spike(
            point.total,
            point.segment,
            point.module,
            point.operator,
            str(_ROLES[int((point.bytes - base).argmax())]),
        )
        for point in highest
    )


def _timeline(points: list[_Point]) -> Timeline:
    """Return a point for each operator, by its number: a recorded step takes other times than one that is not."""
    sizes = np.array([point.bytes for point in points])
    kinds = {
        str(role): tuple(int(size) for size in sizes[:, place])
        for place, role in enumerate(_ROLES)
        if sizes[:, place].any()
    }
    return Timeline(tuple(point.segment for point in points), (0.0,) * len(points), kinds)
