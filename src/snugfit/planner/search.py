"""The choice: the fastest plan that fits, no coarser than the recipe allows.

Plans are the recipe's techniques with a sub-set of the rungs beside them, in micro-batches of some size. The recipe's own plan is
predicted at a few sizes and each rung beside it by itself; that orders all plans by what they would take. From the fastest on they are
predicted, and each prediction mends the estimates, until none that might fit would be faster than the best that was found.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from warnings import catch_warnings

from snugfit.core.job import AUTO, Plan
from snugfit.core.technique import Fidelity, Technique
from snugfit.errors import SnugfitError, SnugfitWarning
from snugfit.planner.answer import Prediction, Rejected
from snugfit.planner.candidate import Budget, Candidate
from snugfit.planner.estimate import Estimate, Estimator, saves, smallest
from snugfit.planner.predict import Planner
from snugfit.planner.rungs import (
    Techniques,
    coarser,
    freezes,
    is_for_frozen,
    level_of,
    placements,
    sets,
    together,
    told,
    told_added,
)
from snugfit.training.fit import sizes
from snugfit.units import format_bytes

_NOTICED = 0.99
"""A plan that takes more than this of another one's time is not faster, and one that needs more than this of its bytes not smaller."""

_NEAR = 1.03
"""Times the budget up to which a plan that is estimated may fit."""

_HOPELESS = 1.5
"""Times the budget from which on the smallest plan of a level, as it is estimated, is not looked at to see whether it fits."""

_MOST = 12
"""Plans that are predicted at one level of precision, beside those that the estimates come from."""


@dataclass
class Search:
    """Tries plans for one subject, and keeps what it found.

    Args:
        planner: predicts.
        plan: as the recipe has it; a micro-batch that it names stays.
        deadline: a time of `time.monotonic` after which no further plan is predicted.
        asked: the recipe's own plan, predicted already.
        may_add: says of a technique whether it may come in.
        even: only micro-batches of one size are tried, as other tools have no others.
    """

    planner: Planner
    plan: Plan
    budget: Budget
    deadline: float
    asked: Candidate
    may_add: Callable[[Technique], bool] = lambda technique: True
    even: bool = False
    tried: list[Candidate] = field(init=False)
    refused: list[Rejected] = field(default_factory=list)
    _estimator: Estimator = field(init=False)
    _saving: list[Technique] = field(default_factory=list)
    _met: set[Fidelity] = field(default_factory=set)
    _impossible: set[tuple[Techniques, int]] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.tried = [self.asked]
        machine = self.planner.machine
        fixed = None if machine.type == "cpu" else machine.device.reserved
        self._estimator = Estimator(self.rows, self.planner.subject.loaded_so, fixed)
        self._estimator.learn_base(self.asked.micro_batch, self.asked.found)

    def best(self) -> Candidate | None:
        """The fastest plan that fits at the finest level at which any does; None where none does."""
        for level in self._levels(self.budget.fidelity):
            self._meet(level)
            self._try(level)
            found = self.fastest(level)
            if found is not None:
                return found
        return None

    def fastest(self, level: Fidelity | None = None) -> Candidate | None:
        """Of the plans that fit, of a level or of all, the fastest; of those that are as fast the simplest."""
        fitting = [each for each in self.tried if each.fits and level in (None, each.level)]
        least = min((each.found.seconds_per_update for each in fitting), default=0.0)
        alike = [each for each in fitting if each.found.seconds_per_update * _NOTICED <= least]
        return min(alike, key=lambda each: (each.level, len(each.added), -each.micro_batch), default=None)

    def least(self) -> Candidate:
        """Of the plans that are no coarser than what is allowed the one that needs the least."""
        coarsest = max(self.asked.level, self.budget.fidelity)
        allowed = [each for each in self.tried if each.level <= coarsest]
        return min(allowed, key=lambda each: each.found.most_bytes)

    def needed(self) -> dict[str, int]:
        """The smallest memory in bytes in which anything fits that was found, by the level of precision, for all levels there are."""
        found: dict[str, int] = {}
        for level in self._levels(Fidelity.QUANTIZED):
            self._meet(level)
            least = smallest([each for each in self._open(level) if each.micro_batch == self._least])
            if least is not None:
                self._predict(least.added, least.micro_batch)
            needs = [each.found.most_bytes for each in self.tried if each.level is level]
            if needs:
                found[level.label] = round(min(needs) / (1 - self.budget.margin))
        return found

    def checked(self, one: Candidate, found: Prediction) -> Candidate:
        """A plan that was tried, predicted anew in full, and kept so."""
        made = replace(one, found=found, fits=self.budget.holds(found))
        self.tried[self.tried.index(one)] = made
        return made

    def _levels(self, coarsest: Fidelity) -> Iterator[Fidelity]:
        own = self.asked.level
        yield from (level for level in Fidelity if own <= level <= max(own, coarsest))

    def _try(self, level: Fidelity) -> None:
        """Predict plans of a level that would be the fastest, until none is left that might be; where none fits, the smallest."""
        for _ in range(_MOST):
            if time.monotonic() > self.deadline:
                return
            best = self.fastest(level)
            limit = best.found.seconds_per_update * _NOTICED if best is not None else float("inf")
            left = [each for each in self._open(level) if each.seconds < limit]
            near = [each for each in left if self.budget.has(each.reserved_bytes / _NEAR, each.host_bytes)]
            chosen = _simplest(near)
            if best is None and chosen is None:
                chosen = self._smaller(left, level)
            if chosen is None or chosen.reserved_bytes > _HOPELESS * self.budget.usable:
                return
            self._predict(chosen.added, chosen.micro_batch)

    def _smaller(self, estimates: Sequence[Estimate], level: Fidelity) -> Estimate | None:
        """The plan that would need the least, if that is less than all that were tried need."""
        tried = min((each.found.reserved_bytes for each in self.tried if each.level is level), default=None)
        least = smallest(estimates)
        return least if least and (tried is None or least.reserved_bytes < _NOTICED * tried) else None

    def _meet(self, level: Fidelity) -> None:
        """Predict what a level's estimates come from: the recipe's own plan at some sizes, and by itself each rung that comes in."""
        if level in self._met:
            return
        self._met.add(level)
        own = level is self.asked.level
        if own:
            for size in self._own_sizes:
                self._predict((), size)
            self._try(level)
            best = self.fastest(level)
            if best is not None and not self._beaten(best):
                return
        rungs = [*placements()] if own else [*coarser(level, self.planner.machine.device)]
        if not freezes(self.asked.techniques):
            if own:
                rungs = [each for each in rungs if not is_for_frozen(each)]
            elif level is Fidelity.ADAPTERS:
                rungs += [each for each in placements() if is_for_frozen(each)]
        for rung in filter(self.may_add, rungs):
            self._weigh(rung)
        if level is Fidelity.ADAPTERS:
            self._weigh_precisions()

    def _beaten(self, best: Candidate) -> bool:
        """Whether the recipe's own plan would be faster in a micro-batch that does not fit; rungs only add time to that."""
        whole = (self._estimator.estimate((), size).seconds for size in self._sizes)
        return best.found.seconds_per_update * _NOTICED > min(whole)

    def _weigh(self, rung: Technique) -> None:
        """Predict a rung beside the recipe's own techniques, or where it goes with none of them alone, beside adapters.

        What is done to frozen weights is weighed beside adapters first, as it stands in a plan.
        """
        for beside in (*self._adapters, ()) if is_for_frozen(rung) else ((), *self._adapters):
            weighed: list[tuple[Candidate, Candidate]] = []
            for size in self._telling_sizes:
                without = self._predict(beside, size)
                one = self._predict((*beside, rung), size) if without is not None else None
                if one is None or without is None:
                    continue
                weighed.append((one, without))
                if saves(one.found, without.found, self.budget.usable):
                    self._saving.append(rung)
                    self._estimator.learn_rung(rung, one.found, without.found)
                    for each, _ in weighed:
                        self._estimator.learn_plan((*beside, rung), each.micro_batch, each.found)
                    return
            if weighed:
                self._reject_useless(*weighed[0])
                return

    def _weigh_precisions(self) -> None:
        """Predict each precision beside adapters: of weights that learn it has copies, and of frozen ones it keeps none."""
        precisions = [each for each in self._saving if each.card.precision]
        for precision, beside in itertools.product(precisions, self._adapters):
            self._predict((precision, *beside), self._telling_sizes[0])

    @property
    def _adapters(self) -> list[Techniques]:
        return [(each,) for each in self._saving if each.card.fidelity is Fidelity.ADAPTERS]

    @property
    def _telling_sizes(self) -> list[int]:
        """Micro-batches in which a rung is weighed: the smallest in which the recipe's own plan does not fit, else the smallest, as what
        does not depend on the size counts for most there; and where it saves nothing so, the largest, as some of what a window of many
        passes keeps, such as gradients, a window that is taken whole need not."""
        own = [each for each in self.tried if each.techniques == self.asked.techniques]
        over = (each.micro_batch for each in own if not each.fits)
        smallest = min(over, default=min(each.micro_batch for each in own))
        return list(dict.fromkeys((smallest, self._sizes[0])))

    def _open(self, level: Fidelity) -> list[Estimate]:
        """Estimates of all plans of a level that were not tried."""
        own = self.asked.techniques
        known = {(each.techniques, each.micro_batch) for each in self.tried}
        found = []
        for added, techniques in sets(own, self._saving):
            if level_of(techniques) is level:
                found += [
                    self._estimator.estimate(added, size)
                    for size in self._sizes
                    if size >= self._least
                    and (techniques, size) not in known
                    and (added, size) not in self._impossible
                ]
        return found

    def _predict(self, added: Techniques, micro_batch: int) -> Candidate | None:
        """A plan, tried once; None where it cannot be run, and why is kept."""
        try:
            techniques = together(self.asked.techniques, added)
            for known in self.tried:
                if known.techniques == techniques and known.micro_batch == micro_batch:
                    return known
            plan = replace(self.plan, micro_batch=micro_batch)
            with catch_warnings(action="ignore", category=SnugfitWarning):  # of what nobody asked for
                found = self.planner.predict(plan, techniques, rough=True)
        except Exception as refusal:
            if not added and not isinstance(refusal, SnugfitError):
                raise  # the recipe's own plan; a rung that the planner cannot run must not take the answer with it
            refused = isinstance(refusal, SnugfitError)
            reason = (
                str(refusal) if refused else f"the planner cannot run it: {type(refusal).__name__}: {refusal}"
            )
            self._reject(" + ".join(map(told, added)), reason.splitlines()[0], None)
            self._impossible.add((added, micro_batch))
            return None
        names = told_added(techniques, self.asked.techniques)
        made = Candidate(techniques, micro_batch, names, found, self.budget.holds(found))
        self.tried.append(made)
        if not added:
            self._estimator.learn_base(micro_batch, found)
        elif all(each in self._saving for each in added):
            self._estimator.learn_plan(added, micro_batch, found)
        return made

    @cached_property
    def _least(self) -> int:
        """The smallest micro-batch that runs: examples that are mixed in groups stay together."""
        runs = (size for size in self._sizes[:-4:-1] if self._predict((), size) is not None)
        return next(runs, self.asked.micro_batch)

    @property
    def rows(self) -> int:
        """Of a window."""
        return self.planner.subject.window.rows

    @property
    def _own_sizes(self) -> list[int]:
        """Micro-batches with which the recipe's own plan is predicted: all, the next smaller one, and the smallest; on a CPU each that is
        half of the one before, as the time depends on what its caches hold."""
        found = self._sizes[:1]
        for size in self._sizes[1:]:
            if 2 * size <= found[-1] and (len(found) == 1 or self.planner.machine.type == "cpu"):
                found.append(size)
        return sorted({*found, self._least}, reverse=True)

    @property
    def _sizes(self) -> list[int]:
        """Micro-batches that are tried, the largest first."""
        if self.plan.micro_batch not in (None, AUTO):
            return [int(self.plan.micro_batch)]
        tried = [self.rows] if self.planner.fixed_micro_batch else sizes(self.rows)
        return [size for size in tried if not self.even or self.rows % size == 0]

    def _reject_useless(self, one: Candidate, without: Candidate) -> None:
        needs, before = one.found.reserved_bytes, without.found.reserved_bytes
        told = f"saves nothing: {format_bytes(needs)} with it, {format_bytes(before)} without"
        self._reject(one.rung, told, needs)

    def _reject(self, rung: str, reason: str, bytes: int | None) -> None:
        if all(each.rung != rung for each in self.refused):
            self.refused.append(Rejected(rung, reason, bytes))


def _simplest(estimates: Sequence[Estimate]) -> Estimate | None:
    """The fastest; of those that are as fast the one of the fewest rungs, and of those the one of the largest micro-batch."""
    least = min((each.seconds for each in estimates), default=0.0)
    alike = [each for each in estimates if each.seconds * _NOTICED <= least]
    return min(alike, key=lambda each: (len(each.added), -each.micro_batch), default=None)
