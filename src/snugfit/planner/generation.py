"""The memory of answers, planned before the first token: how many are written at once, and which weights stay on the device."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

from torch import nn

from snugfit.errors import SettingError
from snugfit.kit.streaming.weight_stream import blocks_of
from snugfit.planner.answers.plan_figures import brief_bytes
from snugfit.planner.choice.candidate import Budget
from snugfit.planner.cost.allocator import reserved_bytes
from snugfit.planner.cost.records import Role
from snugfit.planner.cost.roofline import pricing
from snugfit.planner.devices.device import Machine
from snugfit.planner.trace.generation_run import Answering, GenerationTrace, dry_run_generation
from snugfit.planner.trace.segments import ROLES, Segment, cut
from snugfit.system.malloc import resident_bytes

_WEIGHTS = ROLES.index(Role.WEIGHTS)

_SLOTS = 2
"""Blocks' worth of device memory that streamed weights come to."""


@dataclass(frozen=True)
class GenerationPlan:
    """The way in which answers are written, and the memory that it takes.

    Args:
        rows: answers that are written, or texts that are scored, at once.
        new_tokens: of an answer at most; 0 where texts are scored.
        resident: blocks that stay on the device where the others are streamed; None: all weights are on it.
        blocks: that may be streamed.
        from_file: whether the weights stay in their file, from which the system reads them where memory is short.
        needed_bytes: of the process on its device, at the peak.
        weights_bytes, cache_bytes, logits_bytes, rest_bytes: the parts of it: weights on the device, keys and values of all tokens, logits of
            the last, and the rest: the process itself, and outputs of layers on their way.
    """

    rows: int
    prompt: int
    new_tokens: int
    resident: int | None
    blocks: int
    from_file: bool
    needed_bytes: int
    budget_bytes: int
    weights_bytes: int
    cache_bytes: int
    logits_bytes: int
    rest_bytes: int

    @property
    def streamed(self) -> int:
        """Return how many blocks are streamed."""
        return 0 if self.resident is None else self.blocks - self.resident

    @property
    def parts(self) -> str:
        """Return what the memory is for, in words."""
        sizes = {
            "weights": self.weights_bytes,
            "keys and values": self.cache_bytes,
            "logits": self.logits_bytes,
            "the process and what layers put out": self.rest_bytes,
        }
        return ", ".join(
            f"{name} {brief_bytes(size)}" for name, size in sizes.items() if size or self.new_tokens
        )

    def __str__(self) -> str:
        work = f"Answers: {self.rows:,} at once, of at most {self.new_tokens:,} tokens each, to prompts of at most {self.prompt:,}"
        if not self.new_tokens:
            work = f"Texts: {self.rows:,} at once, of at most {self.prompt:,} tokens each"
        sentence = (
            f"{brief_bytes(self.needed_bytes)} of {brief_bytes(self.budget_bytes)} ({self.parts}). {work}"
        )
        if self.resident is not None:
            sentence += f"; {self.streamed} of {self.blocks} layers are streamed from host memory"
        if self.from_file:
            sentence += "; weights are read from their file again where memory is short, which is slow"
        return sentence


def plan_generation(
    model: nn.Module, asked: Answering, machine: Machine, budget: Budget, *, file_bytes: int = 0
) -> GenerationPlan:
    """Return the way to write answers that is likely the fastest of those that the budget holds.

    Args:
        model: on the host, or on the meta device.
        file_bytes: of its weights that lie in files, which a CPU computes with where they lie.
    Raises:
        SettingError: the budget does not hold a single answer.
        Untraceable: the model cannot be run on tensors without numbers.
    """
    search = _Search(model, asked, machine, budget, file_bytes)
    return search.best()


@dataclass(frozen=True)
class _Use:
    """The memory of one way."""

    needed: int
    peak: Segment
    generation: GenerationTrace


@dataclass
class _Search:
    model: nn.Module
    asked: Answering
    machine: Machine
    budget: Budget
    file_bytes: int
    _uses: dict[tuple[int, int | None, int], _Use] = field(default_factory=dict)

    def best(self) -> GenerationPlan:
        whole = self._most_rows(None)
        if whole == self.asked.rows:
            return self._plan(whole, None)
        ways: list[tuple[int, int | None, bool]] = [] if whole == 0 else [(whole, None, False)]
        if self.machine.device.has_own_memory and self._blocks:
            ways += [(rows, resident, False) for rows, resident in self._streamed()]
        elif self._spared:
            rows = self._most_rows(None, from_file=True)
            ways += [(rows, None, True)] if rows > whole else []
        if not ways:
            raise self._error()
        rows, resident, from_file = min(ways, key=lambda way: self._seconds(*way) / way[0])
        return self._plan(rows, resident, from_file)

    @cached_property
    def _blocks(self) -> list[int]:
        """Bytes of the weights of each block that may be streamed."""
        blocks = blocks_of(self.model, ()).values()
        return [sum(weight.nbytes for weight in block.parameters()) for block in blocks]

    @cached_property
    def _spared(self) -> int:
        """Bytes of the weights in files that need not be there at a time: all but two of the largest blocks."""
        return max(0, self.file_bytes - _SLOTS * max(self._blocks, default=self.file_bytes))

    def _most_rows(self, resident: int | None, *, from_file: bool = False) -> int:
        """Return the most answers at once that fit, 0 where none does: memory grows by the same with each row, and the last is run."""

        def fits(rows: int) -> bool:
            return self._fits(self._use(rows, resident).needed - (self._spared if from_file else 0))

        wanted = self.asked.rows
        if fits(wanted):
            return wanted
        if not fits(1):
            return 0
        low, high = 1, wanted
        each = max(1, self._use(2, resident).needed - self._use(1, resident).needed)
        spare = self.budget.usable + (self._spared if from_file else 0) - self._use(1, resident).needed
        guess = min(max(1 + spare // each, 1), wanted - 1)
        while high - low > 1:
            if fits(guess):
                low = guess
                guess += 1
            else:
                high = guess
                guess -= 1
            if not low < guess < high:
                break
        return low

    def _streamed(self) -> list[tuple[int, int | None]]:
        """Return ways with streamed blocks: the most rows with few blocks on the device, and one row with many."""
        rows = self._most_rows(0)
        if rows == 0:
            return []
        counts = {rows, max(1, rows // 2), 1}
        return [(count, self._most_resident(count)) for count in sorted(counts)]

    def _most_resident(self, rows: int) -> int:
        spare = self.budget.usable - self._use(rows, 0).needed
        resident = min(len(self._blocks) - 1, max(0, spare // max(1, *self._blocks)))
        while resident > 0 and not self._fits(self._use(rows, resident).needed):
            resident -= 1
        return resident

    def _fits(self, needed: int) -> bool:
        return needed <= self.budget.usable

    def _use(self, rows: int, resident: int | None, new_tokens: int | None = None) -> _Use:
        new_tokens = self.asked.new_tokens if new_tokens is None else new_tokens
        key = (rows, resident, new_tokens)
        if key not in self._uses:
            asked, machine = replace(self.asked, new_tokens=new_tokens), self.machine
            generation = dry_run_generation(self.model, asked, rows, machine.type, resident=resident)
            segments = cut(generation.trace, machine.type, pricing(machine.device, machine.host))
            peak = max(segments, key=lambda each: each.bytes)
            if machine.type == "cpu":  # where the run saw one memory for the device and its host
                peak.peak[_WEIGHTS] -= generation.streamed_bytes
            if machine.type == "cpu" and not machine.device.has_own_memory:
                needed = resident_bytes(peak.bytes, machine.baseline)
            else:
                needed = peak.bytes + self._torn(generation) + machine.device.reserved
            self._uses[key] = _Use(needed, peak, generation)
        return self._uses[key]

    def _torn(self, generation: GenerationTrace) -> int:
        """Return the bytes that the allocator takes of the device beyond what is asked of it."""
        if self.machine.type == "cpu":
            return 0
        expandable = self.machine.expandable_segments
        return reserved_bytes(generation.trace, self.machine.type, expandable_segments=expandable).torn

    def _seconds(self, rows: int, resident: int | None, from_file: bool) -> float:
        """Return seconds of a token of all rows, roughly: weights and cache are read once, streamed ones come over the link."""
        device, use = self.machine.device, self._use(rows, resident)
        inside = sum(self._blocks) * (0 if resident is None else 1 - resident / len(self._blocks))
        outside = use.peak.peak[_WEIGHTS] + use.generation.cache_bytes
        missing = max(0, use.needed - self.budget.usable) if from_file else 0
        reading = float(outside) / (device.bandwidth * device.reach)
        return max(reading, float(inside) / device.host_link.bandwidth) + missing / device.disk

    def _plan(self, rows: int, resident: int | None, from_file: bool = False) -> GenerationPlan:
        use = self._use(rows, resident)
        weights = int(use.peak.peak[_WEIGHTS]) - (self._spared if from_file else 0)
        needed = use.needed - (self._spared if from_file else 0)
        cache, logits = use.generation.cache_bytes, use.generation.logits_bytes
        return GenerationPlan(
            rows,
            self.asked.prompt,
            self.asked.new_tokens,
            resident,
            len(self._blocks),
            from_file,
            needed,
            self.budget.memory_bytes,
            weights,
            cache,
            logits,
            max(0, needed - weights - cache - logits),
        )

    def _error(self) -> SettingError:
        """Return the error of a budget that holds no answer: the least that one takes, and how long one may be."""
        streams = self.machine.device.has_own_memory and bool(self._blocks)
        resident = 0 if streams else None
        spared = 0 if streams else self._spared
        least = self._plan(1, resident, from_file=spared > 0)

        def fits(new_tokens: int) -> bool:
            return self._fits(self._use(1, resident, new_tokens).needed - spared)

        shorter = _largest(fits, self.asked.new_tokens) if self.asked.new_tokens else 0
        remedy = f"Allow at most {shorter:,} new tokens, or give" if shorter else "Give"
        work = f"one answer of {self.asked.new_tokens:,} tokens to a prompt of {self.asked.prompt:,}"
        without = least.needed_bytes - least.weights_bytes  # that no width of the weights makes smaller
        bits = ", or take fewer bits: --numbers bf16, --quantize nf4" if self._fits(without) else ""
        if not self.asked.new_tokens:
            work, bits = f"the scores of one text of {self.asked.prompt:,} tokens", ""
        least_budget = math.ceil(least.needed_bytes / (1 - self.budget.margin) * _SPARE)
        return SettingError(
            "memory",
            f"{brief_bytes(self.budget.memory_bytes)} are too little for {work}, which takes {brief_bytes(least.needed_bytes)} ({least.parts})",
            f"{remedy} {brief_bytes(least_budget)} of memory{bits}.",
        )


_SPARE = 1.01
"""Part of the least memory that is named as enough: three digits of it are shown, and a process takes a little more or less at each start."""


def _largest(fits: Callable[[int], bool], below: int) -> int:
    """Return the largest number below `below` that fits, 0 where none does: what fits grows with it.

    >>> _largest(lambda number: number <= 5, 100), _largest(lambda number: False, 100)
    (5, 0)
    """
    low, high = 0, below
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
