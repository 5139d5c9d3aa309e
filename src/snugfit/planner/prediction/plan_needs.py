"""The needs of a plan, in bytes and seconds: the dry run, carried on to the run's depth and number of micro-batches."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import nn

from snugfit.core.job import AUTO, Plan
from snugfit.core.layers import repeated_blocks
from snugfit.core.losses import couples_rows, find_loss
from snugfit.core.technique import Family, Sharing, Stage, Technique
from snugfit.errors import Untraceable
from snugfit.kit.batch_norm import has_batch_norm
from snugfit.kit.skeleton import skeleton
from snugfit.planner.answers.answer import Prediction
from snugfit.planner.cost.allocator import replay, torn_beside
from snugfit.planner.cost.records import Op, Trace
from snugfit.planner.cost.recurrent import note
from snugfit.planner.cost.roofline import Costs, peak_rate, pricing
from snugfit.planner.cost.workspace import doubt
from snugfit.planner.devices.device import Machine
from snugfit.planner.prediction.allocations import Allocations, carried_on, flat
from snugfit.planner.prediction.by_size import BySize, repeated
from snugfit.planner.prediction.depth import (
    Blocks,
    Fewer,
    fewer_blocks,
    lists_of_blocks,
    shortened,
    tells_blocks_apart,
)
from snugfit.planner.prediction.extrapolate import Axis, NotLinear, stretch
from snugfit.planner.prediction.peak_and_time import Run, prediction_of
from snugfit.planner.prediction.staying import Streamed, keeping, staying, with_staying
from snugfit.planner.trace.dry_run import Subject, dry_run
from snugfit.planner.trace.operator_cache import OperatorCache
from snugfit.planner.trace.recorder import OutOfTime, never
from snugfit.planner.trace.segments import copies_of_blocks, cut
from snugfit.step.window_gradients import asks_for_sums
from snugfit.strategies.base import Strategy
from snugfit.system.second_process import SecondProcess
from snugfit.system.threads import one_thread

_FEW = 7
"""Micro-batches that are run as they are; of more, three and four tell what comes of them, which is as much to run."""

_FEWEST: tuple[int, ...] = (3, 4)
"""Micro-batches of the shorter run: the first one finds no gradients to add to, and a middle one has to have its like before it.

That is the third where the second still has to do with what the first one left, such as gradients that were on their way to the host.
"""

_LIKE_ALL = 3
"""Micro-batches after which the allocator takes nothing more: the first one, one that finds gradients, and the last one."""

_MOST_PASSES = 128
"""Passes through a block of a run of all blocks for the allocator alone: more of them would take longer than all else of a check."""

_ROUGHLY = 2
"""Micro-batches of the run that a rough answer comes from, of which the second stands for all but the first."""

_ROUGHLY_WITH_A_STEP = 3
"""The same where the last one is like no other, as it makes the step: the second stands for all between."""


PERIODS = 4
"""Periods of each list of blocks in the shortest run of a choice: two at its beginning, two at its end. A rough one has one at its end, which nobody checks."""

_TRIES = 3
"""Times that as many blocks are tried as a period more, where those before do not tell."""

Depths = tuple[int, ...]
"""How many blocks each list of a model has."""

RunKey = tuple[Depths | None, int | None]
"""The number of blocks and of micro-batches of a run; None for all."""


@dataclass
class Planner:
    """Predictions for one subject on one machine; the model is looked at once.

    Args:
        whole: whether the model is always run with all its blocks, and the window with all its micro-batches.
    """

    subject: Subject
    machine: Machine
    whole: bool = False
    lists: tuple[Blocks, ...] = field(init=False)  # of blocks, in the order of the model
    fixed_micro_batch: bool = field(init=False)
    _threads: int = field(default_factory=torch.get_num_threads, init=False)  # of the run
    _models: dict[Depths | None, nn.Module] = field(default_factory=dict, init=False)
    # of the last question alone, which is asked in full after it was asked roughly
    _runs: dict[RunKey, Run] = field(default_factory=dict, init=False)
    _question: tuple[Plan, tuple[Technique, ...]] | None = field(default=None, init=False)
    _operators: OperatorCache = field(default_factory=OperatorCache, init=False)
    # by whether in tf32, and whether files are read
    _costs: dict[tuple[bool, bool], Callable[[Op], Costs]] = field(default_factory=dict, init=False)
    _base_of: dict[frozenset[Technique], int] = field(
        default_factory=dict, init=False
    )  # the periods that told, by placements
    _apart: dict[tuple[Technique, Blocks], bool] = field(
        default_factory=dict, init=False
    )  # those whose patterns are of some blocks of a list
    wanted: int | None = field(default=None, init=False)  # blocks, in place of those that the model has
    second: SecondProcess | None = field(default=None, init=False)  # that runs what `run` does
    _late: Callable[[], bool] = field(
        default_factory=lambda: never, init=False
    )  # whether nothing more is to be run

    def __post_init__(self) -> None:
        self._models[None] = model = self.subject.model()
        self.lists = () if self.whole else lists_of_blocks(model)
        techniques = self.subject.techniques
        coupled = any(Stage.COUPLING in each.card.stages for each in techniques)
        self.fixed_micro_batch = (
            has_batch_norm(model)
            or any(each.card.couples_examples for each in techniques)
            or (self._compares_rows() and not coupled)
        )

    def _compares_rows(self) -> bool:
        loss = find_loss(self.subject.loss)
        return couples_rows(loss) and not asks_for_sums(loss, self.subject.forward)

    def predict(
        self,
        plan: Plan,
        techniques: Sequence[Technique],
        *,
        rough: bool = False,
        late: Callable[[], bool] = never,
    ) -> Prediction:
        """Return what a plan needs.

        Args:
            rough: take it that what two micro-batches and few blocks tell holds for more of them, without a third run to check it.
            late: says whether the time is over, after which nothing more is run.
        Raises:
            UserError: the model, the techniques or the settings cannot be run.
            OutOfTime: it is late.
        """
        self._late = late
        try:
            run, exact = self.run_of(plan, techniques, rough)
        finally:
            self._late = never
        return self.prediction_of_run(run, plan, techniques, exact)

    def by_size(self, plan: Plan, techniques: Sequence[Technique]) -> BySize:
        """Return what micro-batches of each size need, roughly, whatever that of the plan is."""

        def sized(size: int) -> Plan:
            return replace(plan, micro_batch=size)

        return BySize(
            lambda size: self.run_of(sized(size), techniques, rough=True)[0],
            lambda run, size: self.prediction_of_run(run, sized(size), techniques, exact=False),
            lambda size: self.micro_batches(sized(size)),
            self.with_staying,
        )

    def prediction_of_run(
        self, run: Run, plan: Plan, techniques: Sequence[Technique], exact: bool
    ) -> Prediction:
        """Return what a plan needs, as its run tells."""
        arriving = not self.subject.loaded_so(techniques)
        return prediction_of(
            run, self.subject, self.machine, exact, arriving, micro_batch=self.micro_batch(plan)
        )

    def run_of(self, plan: Plan, techniques: Sequence[Technique], rough: bool = False) -> tuple[Run, bool]:
        """Return the run of a plan, and whether it was run whole; where it is rough, many micro-batches stand for themselves as `repeated` does."""
        if not staying(techniques):
            return self._run_of(plan, techniques, rough)
        try:
            run, _ = self._run_of(plan, keeping(techniques, 0), rough)
            return self.with_staying(run, staying(techniques)), False
        except NotLinear:
            return self.run(plan, techniques, None, None), True

    def with_staying(self, run: Run, blocks: int) -> Run:
        """Return a run that streams all of its blocks as it is where so many of them stay on the device.

        Raises:
            NotLinear: that cannot be told.
        """
        return replace(run, segments=with_staying(run.segments, run.streamed, blocks, self.depth))

    @property
    def depth(self) -> int:
        """Return how many blocks the model has, or is asked to have."""
        return self._own_depth + sum(self._wanted_depths) - sum(each.count for each in self.lists)

    @property
    def _wanted_depths(self) -> Depths:
        """Return how many blocks each list has, or is asked to have."""
        return tuple(self.wanted or each.count for each in self.lists)

    @cached_property
    def _own_depth(self) -> int:
        return len(repeated_blocks(self._models[None]))

    def _run_of(self, plan: Plan, techniques: Sequence[Technique], rough: bool) -> tuple[Run, bool]:
        question = plan, tuple(techniques)
        if question != self._question:
            self._runs.clear()
            self._question = question
        count, counts = self.micro_batches(plan), _FEWEST
        many = count > _FEW
        if rough and any(Stage.WHEN in each.card.stages for each in techniques):
            many, counts = count > 1, (_ROUGHLY_WITH_A_STEP,)
        elif rough:
            many, counts = count > _ROUGHLY, (_ROUGHLY,)
        failed: Exception | None = None
        placed = frozenset(each for each in techniques if each.card.family is Family.PLACEMENT)
        bases = list(self._bases(many, placed, techniques, rough))
        for (periods, base), few in itertools.product(bases, counts if many else (None,)):
            try:
                run = self._carried_on(plan, techniques, base, few, rough)
                if periods != bases[0][0]:
                    self._base_of[placed] = periods
                return run, False
            except (Untraceable, OutOfTime):
                raise  # with all blocks there would be no more numbers, and it takes as many times as long
            # a model or a technique may need a block that is left out, in any way: the whole one tells
            except Exception as error:  # noqa: BLE001
                failed = error
        if self.wanted is not None:
            raise failed or NotLinear("patterns of a technique are of some blocks alone")
        if bases:
            self._base_of[placed] = self._below_none
        return self._run_once(plan, techniques, None, None), True

    @property
    def _below_none(self) -> int:
        """The periods of blocks below which none tells where the first ones that were tried do not: of lists that are hardly long enough no more are tried."""
        return 0 if self._are_long(()) else max((each.count for each in self.lists), default=0)

    def _are_long(self, whole: Collection[Blocks]) -> bool:
        """Return whether three runs of fewer blocks, which check what two of them tell, are less than one of all."""
        fewer = fewer_blocks(self.lists, PERIODS, whole)
        return fewer is not None and sum(each.count for each in self.lists) > 3 * sum(fewer.longer(1))

    def _uneven_lists(self, techniques: Sequence[Technique]) -> list[Blocks]:
        """Return the lists of which patterns of these techniques are of some blocks and not of others."""
        model = self._models[None]
        for key in itertools.product(techniques, self.lists):
            if key not in self._apart:
                self._apart[key] = tells_blocks_apart(key[0], model, key[1])
        return [each for each in self.lists if any(self._apart[one, each] for one in techniques)]

    def _bases(
        self, many: bool, placed: frozenset[Technique], techniques: Sequence[Technique], rough: bool
    ) -> Iterator[tuple[int, Fewer | None]]:
        """Yield the blocks from which a run is carried on, with how many periods of each list they are.

        There are more where a technique looks further than to the next block, as fewer placements tell that needed them, none where
        the lists are too short for what is asked, and all (None) where it has many micro-batches. A list of which some technique tells
        blocks apart stays whole.
        """
        if self.whole:
            return
        whole = self._uneven_lists(techniques)
        long = self.wanted is not None or self._are_long(whole)
        if rough or long:
            least = max((periods for fewer, periods in self._base_of.items() if fewer <= placed), default=0)
            first = PERIODS - rough
            for periods in range(first, PERIODS + _TRIES if long else first + 1):
                base = fewer_blocks(self.lists, periods, whole) if least <= periods else None
                if base is not None and (long or self._is_less(base)):
                    yield periods, base
        if many and self.wanted is None:
            yield self._below_none, None

    def _is_less(self, base: Fewer) -> bool:
        """Return whether two runs are no more than one of all blocks; another process may make the deeper one."""
        return sum(each.count for each in self.lists) >= 2 * sum(base.longer(1))

    def strategy(self) -> AbstractContextManager[Strategy | None]:
        """Return a context around each dry run that gives what the step is to know of other devices."""
        return nullcontext()

    @property
    def sharing(self) -> Sharing | None:
        """Return how several devices share the model; None for one device."""
        return None

    def micro_batches(self, plan: Plan) -> int:
        """Return how many micro-batches a window has."""
        return math.ceil(self.subject.window.rows / self.micro_batch(plan))

    def micro_batch(self, plan: Plan) -> int:
        """Return how many examples a micro-batch has at most."""
        rows = self.subject.window.rows
        return rows if plan.micro_batch in (None, AUTO) else min(int(plan.micro_batch), rows)

    def _carried_on(
        self, plan: Plan, techniques: Sequence[Technique], base: Fewer | None, few: int | None, rough: bool
    ) -> Run:
        """Return the run from `base` blocks and `few` micro-batches, each None for all of them."""
        count = self.micro_batches(plan)
        self._run_side_by_side(plan, techniques, self._runs_from(base, few, rough))
        run = self._deep(plan, techniques, base, few, check=not rough)
        if few is not None and rough:
            return repeated(run, count)
        deep = run
        if few is not None:
            more = self._deep(plan, techniques, base, few + 1, check=False)
            run = replace(
                more, segments=stretch(run.segments, more.segments, Axis("micro_batch", few, count))
            )
        if rough or base is None or self.machine.type == "cpu" or self.wanted is not None:
            return run
        return replace(run, torn=self._torn_of_all(plan, techniques, base, few, deep))

    def _runs_from(self, base: Fewer | None, few: int | None, rough: bool) -> list[RunKey]:
        """Return the runs that one of all blocks and micro-batches is carried on from, as `_carried_on` and `_deep` ask for them."""
        counts = [few] if few is None or rough else [few, few + 1]
        if base is None:
            return [(None, count) for count in counts]
        keys: list[RunKey] = [(base.longer(by), count) for count in counts for by in range(2)]
        checked = not rough and self._axes(base)[0].inserted > 2
        return [*keys, (base.longer(2), few)] if checked else keys

    def _torn_of_all(
        self, plan: Plan, techniques: Sequence[Technique], base: Fewer, few: int | None, deep: Run
    ) -> int:
        """Return the bytes that the allocator takes beyond what is asked of it by all blocks.

        Args:
            deep: the run of all blocks, in as `few` micro-batches.
        """
        axis, *others = self._axes(base)
        try:
            if others:
                raise NotLinear("what several lists allocate is not carried on")
            streams = [self._run_once(plan, techniques, base.longer(by), few).allocations for by in range(3)]
            one, two, three = (each.by_piece() for each in streams)
            if carried_on(one, two, self._axes(base, base.longer(2))[0], [*three]) != three:
                raise NotLinear("the allocations of a third depth are not what two of them tell")
            whole = carried_on(one, two, axis, [each.key for each in deep.segments])
            return replay(flat(whole), expandable_segments=self.machine.expandable_segments).torn
        except NotLinear:
            return self._torn_as_run(plan, techniques, deep)

    def _torn_as_run(self, plan: Plan, techniques: Sequence[Technique], deep: Run) -> int:
        """Return the same from a run of all blocks, in as many micro-batches as do not take long."""
        count = self.micro_batches(plan)
        few = min(count, _LIKE_ALL, max(1, _MOST_PASSES // self.depth))
        torn = self._run_once(plan, techniques, None, None if few == count else few).torn
        # none of its micro-batches may have found gradients
        return max(torn, deep.torn) if few < min(count, _LIKE_ALL) else torn

    def _run_side_by_side(self, plan: Plan, techniques: Sequence[Technique], keys: Sequence[RunKey]) -> None:
        """Make the runs that are not made yet, about half of their work in the second process; nothing where there is none."""
        if self.second is None:
            return
        count, all_blocks = self.micro_batches(plan), sum(each.count for each in self.lists)

        def length(key: RunKey) -> int:
            return (self.depth - all_blocks + sum(key[0]) if key[0] else self.depth) * (key[1] or count)

        there: list[RunKey] = []
        here: list[RunKey] = []
        for key in sorted((key for key in keys if key not in self._runs), key=length, reverse=True):
            min(there, here, key=lambda keys: sum(map(length, keys))).append(key)
        self.second.ask(*((plan, tuple(techniques), *key) for key in there))
        try:
            for key in here:
                self._run_once(plan, techniques, *key)
        except OutOfTime:
            self.second.close()  # whose runs may take long
            raise
        finally:
            answers: list[Run | None] = self.second.answers()
        self._runs.update((key, run) for key, run in zip(there, answers, strict=True) if run is not None)

    def _deep(
        self,
        plan: Plan,
        techniques: Sequence[Technique],
        base: Fewer | None,
        micro_batches: int | None,
        check: bool,
    ) -> Run:
        """Return the run of all blocks, from those of few."""
        if base is None:
            return self._run_once(plan, techniques, None, micro_batches)
        axes = self._axes(base)
        one, two = (self._run_once(plan, techniques, base.longer(by), micro_batches) for by in range(2))
        if check and axes[0].inserted > 2:
            three = self._run_once(plan, techniques, base.longer(2), micro_batches)
            stretched = stretch(one.segments, two.segments, *self._axes(base, base.longer(2)))
            if [(each.key, each.bytes) for each in stretched] != [
                (each.key, each.bytes) for each in three.segments
            ]:
                raise NotLinear("a third depth is not what two of them tell")
        segments = stretch(one.segments, two.segments, *axes)
        parts, times = two.parts, axes[0].inserted - 1
        for axis in axes:
            parts = parts.repeating(axis.start + axis.heads, axis.start + axis.tail, times)
        return replace(two, segments=segments, parts=parts, torn=self._torn_deep(one, two, times))

    def _axes(self, base: Fewer, wanted: Depths | None = None) -> tuple[Axis, ...]:
        """Return the way from a model of few blocks to one of others, by default of all: one axis for each list that has fewer."""
        axes: list[Axis] = []
        before = 0  # blocks of other lists that the wanted model lacks
        of_lists = zip(self.lists, base.depths, base.steps, wanted or self._wanted_depths, strict=True)
        for blocks, depth, step, count in of_lists:
            if step:
                axes.append(Axis("block", depth, count, step, blocks.start - before, blocks.irregular))
                before += blocks.count - count
        return tuple(axes)

    def _run_once(
        self, plan: Plan, techniques: Sequence[Technique], depths: Depths | None, micro_batches: int | None
    ) -> Run:
        """Return what `run` does; what was run before for the same question is not run again."""
        key = (depths, micro_batches)
        if key not in self._runs:
            self._runs[key] = self.run(plan, techniques, depths, micro_batches)
        return self._runs[key]

    def run(
        self, plan: Plan, techniques: Sequence[Technique], depths: Depths | None, micro_batches: int | None
    ) -> Run:
        """Return the step with so many blocks and micro-batches; None for as many as there are."""
        machine = self.machine
        tf32 = any(each.card.needs == "tf32" for each in techniques)
        with self.strategy() as strategy, one_thread(of_run=self._threads):
            subject = replace(self.subject, model=lambda: skeleton(self._of_depths(depths)))
            trace = dry_run(
                subject,
                plan,
                techniques,
                micro_batches=micro_batches,
                strategy=strategy,
                cache=self._operators,
                late=self._late,
            )
        kind = tf32, any(each.reads_files for each in techniques)
        if kind not in self._costs:
            self._costs[kind] = pricing(machine.device, machine.host, *kind)
        pieces = cut(trace, machine.type, self._costs[kind])
        copy = next(iter(copies_of_blocks(trace.ops, trace.parts)), None)
        weights, packed = trace.parts.frozen_block
        allocations = Allocations.of(
            Trace() if machine.type == "cpu" else trace,
            machine.type,
            arriving=not self.subject.loaded_so(techniques),
        )
        reserved = replay(allocations, expandable_segments=machine.expandable_segments)
        return Run(
            pieces,
            reserved.torn,
            trace.bounded,
            trace.parts,
            peak_rate(trace.ops, machine.device, tf32),
            doubt(trace.ops),
            note(trace.ops),
            None if copy is None else Streamed(weights, 0 if kind[1] else packed, self._costs[kind](copy)),
            reserved.at_peak,
            allocations,
        )

    def _of_depths(self, depths: Depths | None) -> nn.Module:
        """Return the model with so many blocks in each list, None for all; made once."""
        if depths not in self._models:
            assert depths is not None
            self._models[depths] = shortened(self._models[None], self.lists, depths)
        return self._models[depths]

    def _torn_deep(self, one: Run, two: Run, periods: int) -> int:
        """Return the bytes that the allocator takes beyond what is asked of it, with so many periods of blocks more than the second run has.

        What lies torn where tensors come and go is about as much beside many blocks as beside few: what one of them leaves, the next one takes.
        What each of them keeps leaves rests of segments, which no other fits in. A run of all blocks tells what it is.
        """
        of_period = two.at_peak - one.at_peak
        more = torn_beside(of_period, periods, expandable_segments=self.machine.expandable_segments)
        return max(one.torn, two.torn) + more
