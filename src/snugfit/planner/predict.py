"""What a plan needs, in bytes and seconds: the dry run, carried on to the run's depth and number of micro-batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from torch import nn

from snugfit.core.batch_norm import has_batch_norm
from snugfit.core.job import AUTO, Plan
from snugfit.core.losses import couples_rows, find_loss
from snugfit.core.malloc import resident_bytes
from snugfit.core.technique import Stage, Technique
from snugfit.errors import SnugfitError
from snugfit.planner.allocator import reserved_bytes
from snugfit.planner.answer import Prediction, Timeline
from snugfit.planner.depth import Blocks, longest_blocks, shortened_
from snugfit.planner.dryrun import Subject, dry_run
from snugfit.planner.extrapolate import Axis, NotLinear, stretch
from snugfit.planner.hardware import Device
from snugfit.planner.records import Phase, Trace
from snugfit.planner.roofline import combined, costs_of
from snugfit.planner.segments import ROLES, Segment, cut

_FEW = 5
"""Micro-batches that are run as they are; of more, two and three tell what comes of them, which is as much to run."""

BASELINE = 600_000_000
"""Bytes that a process is resident with before it trains: Python, torch and the libraries of a model."""

_BESIDE = (Phase.SETUP, Phase.EVALUATION)
"""Phases that are no part of an update."""


@dataclass(frozen=True)
class Machine:
    """What a plan is for: a device, and the CPU beside it; `type` is the device as torch names it in the dry run."""

    device: Device
    host: Device
    type: str = "cpu"
    notes: tuple[str, ...] = ()


@dataclass
class Planner:
    """Predictions for one subject on one machine; the model is looked at once.

    Args:
        whole: whether the model is always run with all its blocks, and the window with all its micro-batches.
    """

    subject: Subject
    machine: Machine
    whole: bool = False
    blocks: Blocks | None = field(init=False)
    fixed_micro_batch: bool = field(init=False)

    def __post_init__(self) -> None:
        model = self.subject.model()
        self.blocks = None if self.whole else longest_blocks(model)
        techniques = self.subject.techniques
        coupled = any(Stage.COUPLING in each.card.stages for each in techniques)
        self.fixed_micro_batch = (
            has_batch_norm(model)
            or any(each.card.couples_examples for each in techniques)
            or (couples_rows(find_loss(self.subject.loss)) and not coupled)
        )

    def predict(self, plan: Plan, techniques: Sequence[Technique], *, rough: bool = False) -> Prediction:
        """What a plan needs.

        Args:
            rough: take it that what two micro-batches and few blocks tell holds for more of them, without a third run to check it.
        Raises:
            UserError: the model, the techniques or the settings cannot be run.
        """
        try:
            if not self.whole and (self.blocks is not None or self.micro_batches(plan) > _FEW):
                return self._prediction(
                    self._carried_on(plan, techniques, rough), plan, techniques, exact=False
                )
        except (
            NotLinear,
            SnugfitError,
        ):  # a technique may name a block that is left out: all of them say whether it may
            pass
        return self._prediction(self._run(plan, techniques, None, None), plan, techniques, exact=True)

    def micro_batches(self, plan: Plan) -> int:
        """How many micro-batches a window has."""
        rows = self.subject.window.rows
        return 1 if plan.micro_batch in (None, AUTO) else math.ceil(rows / int(plan.micro_batch))

    def _carried_on(self, plan: Plan, techniques: Sequence[Technique], rough: bool) -> _Run:
        count = self.micro_batches(plan)
        if count <= _FEW and self.blocks is not None:
            return self._deep(plan, techniques, None, check=not rough)
        two = self._deep(plan, techniques, 2, check=not rough)
        if rough:
            return _Run([_repeated(each, count) for each in two.segments], two.reserved)
        three = self._deep(plan, techniques, 3, check=False)
        return _Run(stretch(two.segments, three.segments, Axis("micro_batch", 2, count)), three.reserved)

    def _deep(
        self, plan: Plan, techniques: Sequence[Technique], micro_batches: int | None, check: bool
    ) -> _Run:
        """The run of all blocks, from those of few."""
        blocks = self.blocks
        if blocks is None:
            return self._run(plan, techniques, None, micro_batches)
        base, period = blocks.fewest, blocks.period
        one, two = (self._run(plan, techniques, depth, micro_batches) for depth in (base, base + period))
        if check and blocks.count > base + 2 * period:
            three = self._run(plan, techniques, base + 2 * period, micro_batches)
            told = stretch(
                one.segments, two.segments, Axis("block", base, base + 2 * period, period, blocks.start)
            )
            if [(each.key, each.bytes) for each in told] != [
                (each.key, each.bytes) for each in three.segments
            ]:
                raise NotLinear("a third depth is not what two of them tell")
        found = stretch(one.segments, two.segments, Axis("block", base, blocks.count, period, blocks.start))
        return _Run(found, two.reserved)

    def _run(
        self, plan: Plan, techniques: Sequence[Technique], depth: int | None, micro_batches: int | None
    ) -> _Run:
        def shorten(model: nn.Module) -> nn.Module:
            if depth is None or self.blocks is None:
                return model
            return shortened_(model, self.blocks, depth)

        machine = self.machine
        tf32 = any(each.card.needs == "tf32" for each in techniques)
        trace = dry_run(self.subject, plan, techniques, shorten=shorten, micro_batches=micro_batches)
        pieces = cut(trace, machine.type, lambda op: costs_of(op, machine.device, machine.host, tf32))
        return _Run(pieces, self._reserved(trace))

    def _reserved(self, trace: Trace) -> float:
        """How much the allocator takes of the device for each byte that is allocated."""
        if self.machine.type == "cpu":
            return 1.0
        found = reserved_bytes(trace, self.machine.type)
        return found.peak_reserved / max(1, found.peak_requested)

    def _prediction(self, run: _Run, plan: Plan, techniques: Sequence[Technique], exact: bool) -> Prediction:
        device, subject = self.machine.device, self.subject
        counted = [each for each in run.segments if each.key.phase is not Phase.PRIME]
        if subject.loaded_so:
            counted = [each for each in counted if each.key.phase is not Phase.SETUP]
        peak = max(counted, key=lambda each: each.bytes)
        update = [each for each in counted if each.key.update == 0 and each.key.phase not in _BESIDE]
        costs = np.sum([each.costs * each.times for each in update], axis=0)
        on_cpu = self.machine.type == "cpu"
        seconds = combined(costs, device, overlap=not on_cpu) + device.update
        flops = sum(each.flops * each.times for each in update)
        lengths = subject.window.lengths
        allocated, host = peak.bytes, max(each.host for each in counted)
        return Prediction(
            peak_bytes=allocated,
            peak_by_kind={str(role): int(part) for role, part in zip(ROLES, peak.peak, strict=True) if part},
            peak_at={"segment": _named(peak), "module": peak.module, "operator": peak.operator},
            reserved_bytes=resident_bytes(allocated, BASELINE)
            if on_cpu
            else round(allocated * run.reserved) + device.reserved,
            host_peak_bytes=resident_bytes(host, BASELINE),
            seconds_per_update=seconds,
            seconds_total=None if subject.total_updates is None else seconds * subject.total_updates,
            tokens_per_second=None if lengths is None else sum(lengths) / seconds,
            examples_per_second=subject.window.rows / seconds,
            flops_per_update=flops,
            share_of_peak=flops / seconds / max(device.flops.values()),
            confidence=self._confidence(exact),
            timeline=_timeline(update, device),
        )

    def _confidence(self, exact: bool) -> dict[str, str]:
        memory = "each operator of the step as it runs"
        if not exact:
            memory += ", carried on from few blocks or micro-batches to all of them"
        time = (
            "measured rates of this device"
            if self.machine.device.calibrated
            else "uncalibrated: from the device's data sheet"
        )
        assumed = self.subject.assumed
        return {
            "memory": memory,
            "time": time,
            **({"data": f"upper bound: {assumed}"} if assumed else {}),
            **{f"note {n}": note for n, note in enumerate(self.machine.notes)},
        }


@dataclass(frozen=True)
class _Run:
    """The pieces of a run, and what the allocator takes for each byte of them."""

    segments: list[Segment]
    reserved: float


def _repeated(segment: Segment, count: int) -> Segment:
    """Of two micro-batches the second one, standing for all that follow the first."""
    return replace(segment, times=count - 1) if segment.key.micro_batch == 1 else segment


def _named(segment: Segment) -> str:
    """A piece of the run in words."""
    key = segment.key
    words = [str(key.phase)]
    if key.micro_batch >= 0 and key.phase is not Phase.EVALUATION:
        words.append(str(key.micro_batch + 1))
    return " ".join(words)


def _timeline(segments: Sequence[Segment], device: Device) -> Timeline:
    """The peaks of the pieces, one after the other."""
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
