"""A plan for several devices: which way they share the work, and that way as one of them runs it.

A step on one device tells what each way would come to (`rules`). A search then looks for the best plan of each way as rank 0 runs it,
each beside those of the ways before it; ways that could not be better are left out. Without a search the recipe's own plan is run in
the ways that should fit, the fastest first, until one does.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from snugfit.core.card import Fidelity
from snugfit.core.job import AUTO, StrategyName
from snugfit.core.layers import repeated_blocks
from snugfit.errors import SettingError, SnugfitError
from snugfit.planner.answers.answer import Answer, Choice, Rejected
from snugfit.planner.answers.plan_figures import brief_seconds
from snugfit.planner.choice.candidate import Candidate, SearchTime
from snugfit.planner.choice.goals import ALIKE, FREE, Goal
from snugfit.planner.choice.sharing_options import Option, alternatives_of, between, options_of, rejections_of
from snugfit.planner.choice.sharing_rules import Decision, Facts, decide
from snugfit.planner.cost.communication import Cluster
from snugfit.planner.cost.records import Phase, Role
from snugfit.planner.devices.device import Machine
from snugfit.planner.export import TOOLS, weighed
from snugfit.planner.plan import Outcome, Request, answer_of, explained, explored, look_for
from snugfit.planner.prediction.peak_and_time import Run
from snugfit.planner.prediction.plan_needs import Planner
from snugfit.planner.prediction.rank import PASSES, Rank, seconds_of
from snugfit.planner.trace.dry_run import Subject, longest_rows
from snugfit.planner.trace.segments import ROLES
from snugfit.step.micro_batch_sizes import sizes
from snugfit.strategies.registry import HYBRID, check_hybrid, known_strategy
from snugfit.units import counted, format_bytes

_MOST_RUNS = 4
"""Ways in which a recipe's own plan is run, where none of them fits, before the answer is that none does."""

_OF_WHAT_IS_LEFT = 0.5
"""Of the seconds that are left to a search, what each way may take: the next ones are looked at too."""

_AFTER = (Phase.UNSCALE, Phase.ADJUST, Phase.OPTIMIZER, Phase.TECHNIQUES)
_LASTING = (Role.WEIGHTS, Role.GRADIENTS, Role.OPTIMIZER)
"""What sharding divides."""

_OFFLOAD: StrategyName = "fsdp-offload"

_ZERO_2: StrategyName = "fsdp-zero2"

_DIVIDE_LESS: tuple[StrategyName, ...] = (_ZERO_2, "ddp")
"""Ways in which a device keeps more than under fsdp, and waits less for the others."""


def make_shared_plan(
    subject: Subject,
    machine: Machine,
    request: Request,
    cluster: Cluster,
    about: Mapping[str, Any] | None = None,
    asked: StrategyName | None = None,
) -> Answer:
    """Return the plan of a run on several devices: as `make_plan`, with the way to share in `choice` and why in `rules`.

    Args:
        asked: the way to share; None for the best of those that fit.
    Raises:
        UserError: as `make_plan`; or a window has fewer examples than there are devices.
    """
    started = time.monotonic()
    shared = _Shared(subject, machine, request, cluster, about or {}, asked)
    answer = shared.answer()
    return replace(answer, planned_seconds=time.monotonic() - started)


@dataclass
class _Shared:
    """A question, and what was found on the way to its answer."""

    subject: Subject
    machine: Machine
    request: Request
    cluster: Cluster
    about: Mapping[str, Any]
    asked: StrategyName | None
    share: Subject = field(init=False)
    depth: int = field(init=False)
    sizes: list[int] = field(init=False)
    rules: list[str] = field(default_factory=list)
    failed: list[Rejected] = field(default_factory=list)
    outcomes: dict[str, Outcome] = field(default_factory=dict)
    nearest: Answer | None = None  # of those that do not fit, the one that needs least
    time: SearchTime = field(init=False)

    def __post_init__(self) -> None:
        self.time = SearchTime(self.request.seconds)
        if self.asked == HYBRID:
            check_hybrid(self.cluster.nodes, self.cluster.devices)
        rows, world = self.subject.window.rows, self.cluster.world
        if rows < world:
            raise SettingError(
                "devices",
                f"{counted(world, 'device')} cannot share a window of {counted(rows, 'example')}",
                f"Raise train.global_batch to {world} or more, or plan for fewer devices.",
            )
        each = math.ceil(rows / world)
        self.share = replace(self.subject, window=longest_rows(self.subject.window, each))
        self.depth = len(repeated_blocks(self.subject.model()))
        self.rules.append(
            f"{world} devices take {each} of the {rows} examples of a window each. "
            f"{format_bytes(self.request.budget.usable)} of each may be used."
        )

    def answer(self) -> Answer:
        decisions = self._decisions()
        options = [each for each in options_of(decisions) if each[0].strategy not in self._useless]
        size, decision = next(
            ((size, each) for way, size, each in options), (self.sizes[-1], decisions[-1][1])
        )
        self.rules += [f"In micro-batches of {size}, by what a step on one device takes:", *decision.why]
        if self.asked is not None:
            self.rules.append(f"{self.asked} is the way to share that was asked for.")
        result = self._searched() if self.request.search else self._first_that_fits(options)
        if result is None and self.nearest is None:  # more may fit than was estimated
            result = self._run(self.asked or "fsdp", self._as_asked(self.sizes[-1]))
        result = result or self.nearest
        if result is None:
            reasons = "; ".join(f"{each.rung}: {each.reason}" for each in self.failed)
            raise SettingError(
                "devices", f"no way to share this among {self.cluster.world} could be planned", reasons
            )
        way = result.choice.strategy
        if result is self.nearest and way in self.outcomes:
            result = self._explained(result, way)
        if self.request.frontier and self.request.search and way in self.outcomes:
            result = self._with_way(answer_of(explored(self.outcomes[way]), self.machine, self.about), way)
        return replace(
            result,
            rules=tuple(self.rules),
            alternatives=(*result.alternatives, *alternatives_of(options, result)),
            rejected=(*result.rejected, *self.failed, *rejections_of(decisions, options)),
        )

    def _explained(self, answer: Answer, way: str) -> Answer:
        """Return the answer of a way in which nothing fits, with what would do."""
        outcome = explained(self.outcomes[way], self.request)
        return self._with_way(answer_of(outcome, self.machine, self.about), way) if outcome.needed else answer

    def _may_be(self, strategy: str) -> bool:
        """Return whether it is what was asked for, or where nothing was, what is of use here."""
        if self.asked is not None:
            return strategy == self.asked
        if strategy == "single":
            return self.request.fewer
        carried = self.request.export is None or strategy in TOOLS[self.request.export].strategies
        return carried and strategy not in self._useless

    @property
    def _useless(self) -> tuple[str, ...]:
        """Return the strategies that gain nothing: on a CPU, whose memory is the host's, what goes there."""
        return (_OFFLOAD,) if self.machine.device.kind == "cpu" else ()

    def _decisions(self) -> list[tuple[int, Decision]]:
        """Return what would be decided with each micro-batch, the largest first."""
        alone = Planner(self.share, self.machine)
        rows, size = self.share.window.rows, self.request.plan.micro_batch
        self.sizes = [rows] if alone.fixed_micro_batch else sizes(rows)
        if size not in (None, AUTO):
            self.sizes = [min(int(size), rows)]
        elif self.request.export is not None:  # other tools have micro-batches of one size
            self.sizes = [each for each in self.sizes if rows % each == 0]
        ends = {each: self._facts(alone, each) for each in (self.sizes[0], self.sizes[-1])}
        return [(each, decide(between(ends, each, rows))) for each in self.sizes]

    def _facts(self, alone: Planner, size: int) -> Facts:
        """Return what a step on one device comes to in micro-batches of this size."""
        plan = replace(self.request.plan, micro_batch=size)
        run, exact = alone.run_of(plan, self.share.techniques, rough=True)
        prediction = alone.prediction_of_run(run, plan, self.share.techniques, exact)
        blocks, _, gradients = run.parts.whole(self.depth)
        world, budget = self.cluster.world, self.request.budget
        kinds = {role: prediction.peak_by_kind.get(str(role), 0) for role in _LASTING}
        forward, backward, update = (seconds_of(run, self.machine, phases) for phases in (*PASSES, _AFTER))
        return Facts(
            peak=prediction.reserved_bytes,
            weights=max(1, kinds[Role.WEIGHTS]),
            gradients=kinds[Role.GRADIENTS],
            optimizer=kinds[Role.OPTIMIZER],
            exchanged=gradients,
            largest_weights=max(run.parts.blocks, default=0),
            largest_activations=_activations(run) + prediction.reserved_bytes - prediction.peak_bytes,
            blocks=blocks,
            outside=run.parts.outside,
            micro_batches=world * alone.micro_batches(plan),
            forward=world * forward,
            backward=world * backward,
            cluster=self.cluster,
            device_memory=budget.usable,
            host_memory=budget.host_bytes,
            host_link=self.machine.device.host_link,
            update=update,
            first=run.parts.trained_first,
        )

    def _searched(self) -> Answer | None:
        """Return the best plan of each way, each beside those that were found before; None where none can be run.

        What divides most without the host goes first. Where it waits for the others for next to nothing, ways that divide less are left
        out, as they need more memory and are no faster; where nothing fits so, nothing does under `fsdp-zero2`. What lies on the host is slow: it is looked at where nothing else fits that is
        as fine, or where the least memory is wanted.
        """
        goal = Goal(self.request.goal, self.request.worth, self.request.slower)
        fine = Fidelity.FULL if goal.name == "finest" else FREE
        ways: tuple[str, ...] = ("fsdp", HYBRID, _ZERO_2, "ddp", "single", _OFFLOAD)
        if self.asked is not None:
            ways = (self.asked,)
        best: dict[str, tuple[Candidate, Answer]] = {}
        for way in ways:
            rivals = [candidate for candidate, _ in best.values()]
            if not self._may_be(way) or (way == HYBRID and self.cluster.nodes == 1):
                continue
            if way in _DIVIDE_LESS and "fsdp" in best and self._waits("fsdp") < ALIKE - 1:
                continue
            if way == _ZERO_2 and "fsdp" in self.outcomes and "fsdp" not in best:
                continue  # what does not fit in parts does not with gathered weights beside them
            if way == _OFFLOAD and goal.name != "smallest" and any(each.level <= fine for each in rivals):
                continue
            seconds = self.time.part(1.0 if self.asked is not None else _OF_WHAT_IS_LEFT)
            answer = self._run(way, replace(self.request, seconds=seconds), rivals)
            if answer is not None and answer.fits:
                best_candidate = self.outcomes[way].choice
                assert best_candidate is not None
                best[way] = best_candidate, answer
        choice = goal.choose([candidate for candidate, _ in best.values()])
        return next((answer for candidate, answer in best.values() if candidate is choice), None)

    def _first_that_fits(self, options: Sequence[Option]) -> Answer | None:
        """Return the recipe's own plan in the first way that fits; what lies on the host is slow, and comes last."""
        too_large: dict[str, int] = {}  # micro-batch that did not fit
        allowed = [each for each in options if self._may_be(each[0].strategy)]
        for way, size, _ in sorted(allowed, key=lambda each: each[0].strategy == _OFFLOAD != self.asked):
            if size >= too_large.get(way.strategy, size + 1) or len(too_large) == _MOST_RUNS:
                continue
            answer = self._run(way.strategy, self._as_asked(size))
            if answer is not None and answer.fits:
                return answer
            too_large[way.strategy] = 0 if answer is None else size
        return None

    def _as_asked(self, micro_batch: int) -> Request:
        """Return the recipe's own plan in micro-batches of this size."""
        return replace(self.request, plan=replace(self.request.plan, micro_batch=micro_batch), search=False)

    def _run(self, way: str, request: Request, rivals: Sequence[Candidate] = ()) -> Answer | None:
        """Return the plan of rank 0 where the devices share the work in this way; None where it cannot be run, and why is kept."""
        cluster, alone = self.cluster, way == "single"
        if (tool := request.export) is not None:
            request = replace(request, rungs=weighed(tool, way, cluster.world, self.machine.device.kind))
        try:
            outcome = look_for(self._planner(way), request, rivals)
        except Exception as error:  # noqa: BLE001 - torch's own too, where a technique and a way do not go together
            reason = str(error).strip().partition("\n")[0]
            reason = reason if isinstance(error, SnugfitError) else f"{type(error).__name__}: {reason}"
            self.failed.append(Rejected(way, f"cannot be planned: {reason}", None))
            return None
        self.outcomes[way] = outcome
        answer = answer_of(outcome, self.machine, self.about)
        needed, seconds = answer.prediction.reserved_bytes, answer.prediction.seconds_per_update
        rung = f"{way}, micro-batch {answer.choice.micro_batch}"
        additions = f" with {', '.join(answer.choice.added)}" if answer.choice.added else ""
        where = "On one device" if alone else f"Run as rank 0 of {cluster.world}"
        self.rules.append(
            f"{where}: {rung}{additions} takes {format_bytes(needed)} of a device and "
            f"{brief_seconds(seconds)} an update{'' if answer.fits else ', and does not fit'}."
        )
        if not answer.fits:
            usable = format_bytes(request.budget.usable)
            self.failed.append(Rejected(rung, f"needs {format_bytes(needed)} of {usable}", needed, seconds))
        answer = self._with_way(answer, way)
        if not answer.fits and (self.nearest is None or needed < self.nearest.prediction.reserved_bytes):
            self.nearest = answer
        return answer

    def _planner(self, way: str) -> Planner:
        if way == "single":
            return Planner(self.subject, self.machine)
        name = known_strategy(way)
        return Rank(
            self.share,
            self.machine,
            cluster=self.cluster,
            way=name,
            window=self.subject.window,
        )

    def _with_way(self, answer: Answer, way: str) -> Answer:
        """Return the answer of a rank, whose plans say how the devices share the work."""
        return replace(
            answer,
            choice=self._shared(answer.choice, way),
            alternatives=tuple(
                replace(each, choice=self._shared(each.choice, way)) for each in answer.alternatives
            ),
            frontier=tuple(replace(each, choice=self._shared(each.choice, way)) for each in answer.frontier),
        )

    def _shared(self, choice: Choice, way: str) -> Choice:
        return replace(choice, strategy=way, devices=1 if way == "single" else self.cluster.world)

    def _waits(self, way: str) -> float:
        """Return the share of the time of a way's choice for which it waits for other devices."""
        candidate, planner = self.outcomes[way].choice, self.outcomes[way].search.planner
        assert candidate is not None and isinstance(planner, Rank)
        plan = replace(self.request.plan, micro_batch=candidate.micro_batch)
        return planner.exposed(plan, candidate.techniques) / candidate.prediction.seconds_per_update


def _activations(run: Run) -> int:
    """Return bytes that are there for the passes while the first block computes for the first time."""
    forward = [each for each in run.segments if each.key.phase is Phase.FORWARD and each.key.micro_batch == 0]
    first = next((each for each in forward if each.key.block == 0), forward[0])
    lasting = sum(int(first.peak[ROLES.index(role)]) for role in _LASTING)
    return first.bytes - lasting
