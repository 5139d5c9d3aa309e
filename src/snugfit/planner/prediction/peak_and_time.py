"""The figures of a plan, from the pieces of its run: bytes at the peak, seconds of an update, and how each was found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from snugfit.core.tree import leaves
from snugfit.planner.answers.answer import Prediction, Timeline
from snugfit.planner.cost.records import Parts, Phase, Role, Trace
from snugfit.planner.cost.roofline import NO_COSTS, Costs, combined
from snugfit.planner.devices.device import Device, Machine
from snugfit.planner.prediction.allocations import Allocations
from snugfit.planner.prediction.staying import Streamed
from snugfit.planner.trace.dry_run import Subject
from snugfit.planner.trace.segments import ROLES, Segment
from snugfit.system.malloc import resident_bytes

_OUTSIDE_UPDATES = (Phase.SETUP, Phase.EVALUATION, Phase.SAVE)
"""Phases that are no part of an update."""

_AFTER_WAITING = (Phase.ADJUST, Phase.OPTIMIZER, Phase.TECHNIQUES)

_WITHOUT_PAGES = np.array([1.0, 1.0, 1.0, 1.0, 0.0])

_PASSES = (Phase.FORWARD, Phase.LOSS, Phase.BACKWARD)
"""Phases in which the inputs of a micro-batch are there."""


@dataclass(frozen=True)
class Run:
    """The pieces of a run, and what a prediction needs to know about them.

    These are the bytes that the allocator takes of the device beyond what is asked of it, operators whose results had to be bounded, the
    parts of the model that was run, which may have had fewer blocks, the FLOP/s that the device reaches at
    most in the run's numbers, the share of the bytes that the run may need more, what else is to be said
    of its memory, its blocks where they are streamed, tensors on the device by their sizes when most was asked for, and the stream of
    allocations.
    """

    segments: list[Segment]
    torn: int
    bounded: tuple[str, ...]
    parts: Parts
    peak_rate: float
    doubt: float = 0.0
    notes: tuple[str, ...] = ()
    streamed: Streamed | None = None
    at_peak: Counter[int] = field(default_factory=Counter)
    allocations: Allocations = field(default_factory=lambda: Allocations.of(Trace(), "cpu"))


def prediction_of(
    run: Run,
    subject: Subject,
    machine: Machine,
    exact: bool,
    arriving: bool = True,
    *,
    micro_batch: int,
) -> Prediction:
    """Return what the pieces of a run come to.

    Args:
        micro_batch: examples of a pass at most.
        exact: none of them was carried on from fewer blocks or micro-batches.
        arriving: whether what is made until all weights have their format and place counts; not where they come so.
    """
    device = machine.device
    counted = [each for each in run.segments if each.times and each.key.phase is not Phase.PRIME]
    if not arriving:
        counted = [each for each in counted if each.key.phase is not Phase.SETUP]
    update = [each for each in counted if each.key.update == 0 and each.key.phase not in _OUTSIDE_UPDATES]
    copied = _input_bytes(subject, micro_batch)
    first = [_in_first_window(each, copied) for each in update if each.key.phase in _PASSES]
    peak = max([*counted, *first], key=lambda each: each.bytes)
    on_cpu = machine.type == "cpu"
    allocated, host = peak.bytes, max(each.host for each in counted) + _ahead_bytes(subject, machine)
    reserved = (
        resident_bytes(allocated, machine.baseline) if on_cpu else allocated + run.torn + device.reserved
    )
    if _has_room_for_pages(device, reserved, update):
        update = [replace(each, costs=each.costs * _WITHOUT_PAGES) for each in update]
    passes, rest = _before_and_after_waiting(update)
    costs = passes + rest
    seconds = sum(combined(part, device, overlap=not on_cpu) for part in (passes, rest)) + device.update
    flops = sum(each.flops * each.times for each in update)
    lengths = subject.window.lengths
    return Prediction(
        peak_bytes=allocated,
        peak_by_kind=_by_kind(peak),
        peak_at={"segment": _named(peak), "module": peak.module, "operator": peak.operator},
        reserved_bytes=reserved,
        host_peak_bytes=resident_bytes(host, machine.baseline),
        seconds_per_update=seconds,
        seconds_total=subject.seconds_of_run(seconds),
        tokens_per_second=None if lengths is None else sum(lengths) / seconds,
        examples_per_second=subject.window.rows / seconds,
        flops_per_update=flops,
        share_of_peak=flops / seconds / run.peak_rate,
        confidence=_confidence(subject, machine, exact, run),
        timeline=_timeline(update, device),
        peak_by_phase=_by_phase(counted),
        doubt_bytes=round(allocated * run.doubt) if on_cpu else 0,
        host_seconds=float(costs[3]) if device.kind == "cpu" else 0.0,
        step_seconds=_step_seconds(update, rest, device),
    )


def _before_and_after_waiting(update: Sequence[Segment]) -> tuple[Costs, Costs]:
    """Return the costs of an update until the host waits for the device, which says whether the gradient is finite, and from then on.

    What the host does afterwards nothing runs beside that came before.
    """
    passes, rest = NO_COSTS.copy(), NO_COSTS.copy()
    for each in update:
        part = rest if each.key.phase in _AFTER_WAITING else passes
        part += each.costs * each.times
    return passes, rest


def _step_seconds(update: Sequence[Segment], rest: Costs, device: Device) -> float:
    """Return seconds that an update takes at least beside its passes: after waiting, or where the step is made in the last backward, in that."""
    last = max((each.key.micro_batch for each in update), default=-1)
    within = NO_COSTS.copy()
    if last > 1:  # of two, the second is like those that follow
        for each in update:
            number = each.key.micro_batch
            if number in (last - 1, last) and each.key.phase not in _AFTER_WAITING:
                within += each.costs if number == last else -each.costs
    busy, _, on_host, _, _ = map(float, within.clip(min=0))
    return combined(rest * _WITHOUT_PAGES, device, overlap=device.kind != "cpu") + busy + on_host


def _has_room_for_pages(device: Device, reserved: int, update: Sequence[Segment]) -> bool:
    """Return whether all pages that an update takes stay on the device beside what is reserved there.

    Where they do not, all of them come and leave: those that were used first are the first to go, and the next update begins with them.
    """
    seconds = sum(float(each.costs[4]) * each.times for each in update)
    return reserved + seconds * device.host_link.bandwidth / 2 <= device.memory_bytes


def _input_bytes(subject: Subject, micro_batch: int) -> int:
    """Return the bytes of a micro-batch's inputs."""
    window = sum(each.nbytes for each in leaves(subject.window.data))
    return window * micro_batch // subject.window.rows


def _ahead_bytes(subject: Subject, machine: Machine) -> int:
    """Return the bytes on the host of the window that is fetched while a device computes, and of what is pinned for a moment beside it."""
    return 0 if machine.type == "cpu" else 2 * _input_bytes(subject, subject.window.rows)


def _in_first_window(segment: Segment, copied: int) -> Segment:
    """Return a piece as it is in the first window, whose inputs are copied (`step/model_checks/changed_inputs.py`) and which has no states of an optimizer."""
    peak = segment.peak.copy()
    peak[ROLES.index(Role.OPTIMIZER)] = 0
    peak[ROLES.index(Role.INPUTS)] += copied
    return replace(segment, peak=peak)


def _confidence(subject: Subject, machine: Machine, exact: bool, run: Run) -> dict[str, str]:
    memory = "each operator of the step as it runs"
    if not exact:
        memory += ", carried on from few blocks or micro-batches to all of them"
    if run.bounded:
        memory += f"; an upper bound, as data decides what {', '.join(run.bounded)} gives"
    if run.doubt:
        memory += f"; {run.doubt:.1%} more at most, as what kernels of half precision take within themselves is only about known"
    memory = "; ".join((memory, *run.notes))
    time = (
        "measured rates of this device"
        if machine.device.calibrated
        else "uncalibrated: from the device's data sheet"
    )
    return {
        "memory": memory,
        "time": time,
        **({"data": f"upper bound: {subject.assumed}"} if subject.assumed else {}),
    }


def _by_kind(segment: Segment) -> dict[str, int]:
    """Return the bytes of a piece at its peak."""
    return {str(role): int(part) for role, part in zip(ROLES, segment.peak, strict=True) if part}


def _by_phase(segments: Sequence[Segment]) -> dict[str, dict[str, int]]:
    """Return the bytes of each phase at its peak."""
    highest: dict[Phase, Segment] = {}
    for each in segments:
        phase = each.key.phase
        if phase not in highest or each.bytes > highest[phase].bytes:
            highest[phase] = each
    return {str(phase): _by_kind(each) for phase, each in highest.items()}


def _named(segment: Segment) -> str:
    """Return a piece of the run in words."""
    key = segment.key
    words = [str(key.phase)]
    if key.micro_batch >= 0 and key.phase is not Phase.EVALUATION:
        words.append(str(key.micro_batch + 1))
    return " ".join(words)


def _timeline(segments: Sequence[Segment], device: Device) -> Timeline:
    """Return the peaks of the pieces, one after the other."""
    passed, seconds, names = 0.0, [], []
    kinds: dict[str, list[int]] = {str(role): [] for role in ROLES}
    for each in segments:
        seconds.append(passed)
        passed += combined(each.costs * each.times, device)
        names.append(_named(each))
        for role, part in zip(ROLES, each.peak, strict=True):
            kinds[str(role)].append(int(part))
    used = {kind: tuple(parts) for kind, parts in kinds.items() if any(parts)}
    return Timeline(tuple(names), tuple(seconds), used)
