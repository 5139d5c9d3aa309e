"""Plans of one subject that were predicted: each is run once, kept, and held against what there is room for."""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from warnings import catch_warnings

from snugfit.core.job import AUTO, Plan
from snugfit.core.technique import Fidelity, Technique
from snugfit.errors import SnugfitError, SnugfitWarning
from snugfit.planner.answers.answer import Prediction, Rejected
from snugfit.planner.choice.candidate import Budget, Candidate
from snugfit.planner.choice.goals import Goal
from snugfit.planner.choice.rung_sets import go_together, number_of_sets, order_of, stands_in
from snugfit.planner.choice.rungs import (
    Techniques,
    coarser,
    label,
    labels_of_added,
    level_of,
    placements,
    together,
)
from snugfit.planner.prediction.by_size import BySize
from snugfit.planner.prediction.plan_needs import Planner
from snugfit.planner.prediction.staying import keeping, staying
from snugfit.step.micro_batch_sizes import sizes

MOST = 120
"""Predictions of one search."""

_DOUBTED = 3
"""Plans that turn out not to fit, after which no other is believed: what one was short of another may not be, and each costs a prediction in full."""

_CHECK = 6.0
"""Times what a plan took to be looked at that it takes about to be predicted in full: three depths, and twice as many micro-batches."""

Progress = Callable[[int, int, Candidate | None, Fidelity | None], None]


@dataclass
class Trials:
    """Plans of one subject that were predicted.

    Args:
        planner: predicts.
        plan: as the recipe has it; a micro-batch that it names stays.
        deadline: a time of `time.monotonic` after which no further plan is predicted.
        asked: the recipe's own plan, predicted already.
        rivals: plans that were found elsewhere, beside which one of these has to be the choice.
        progress: is told how many plans were looked at, of how many, the best so far, and `only`.
        may_add: says of a technique whether it may come in.
        even: only micro-batches of one size are tried, as other tools have no others.
        only: the level of all plans that are looked at; None for all that the budget allows.
        most: predictions.
    """

    planner: Planner
    plan: Plan
    budget: Budget
    deadline: float
    asked: Candidate
    goal: Goal = field(default_factory=Goal)
    rivals: Sequence[Candidate] = ()
    progress: Progress = lambda *_: None
    may_add: Callable[[Technique], bool] = lambda _: True
    even: bool = False
    only: Fidelity | None = None
    most: int = MOST
    tried: list[Candidate] = field(init=False)
    rejected: list[Rejected] = field(default_factory=list)
    complete: bool = True
    out_of_time: bool = False
    looked: int = 0
    _sized: dict[Techniques, BySize | None] = field(default_factory=dict)
    _exact: list[Candidate] = field(default_factory=list)  # predicted in full
    _misses: list[float] = field(
        default_factory=list
    )  # times what was predicted of few micro-batches that plans needed which did not fit

    _took: dict[Techniques, float] = field(
        default_factory=dict
    )  # seconds that a run of each set took at most

    def __post_init__(self) -> None:
        self.tried = [self.asked]
        self._begun = time.monotonic()

    def choice(self) -> Candidate | None:
        """Return the choice among the plans that were tried."""
        return self.goal.choose(self._allowed())

    def smallest(self) -> Candidate | None:
        """Return the plan of the least memory that fits, or where none does, of all that were tried; None where none was."""
        return min(
            self._allowed(), key=lambda each: (not each.fits, each.prediction.most_bytes), default=None
        )

    def least(self) -> Candidate:
        """Return the plan that needs the least, of those that are no coarser than what is allowed."""
        return min(self._allowed(), key=lambda each: each.prediction.most_bytes)

    def _allowed(self) -> list[Candidate]:
        return [each for each in self.tried if self._is_allowed(each.level)]

    def _allows(self, added: Techniques) -> bool:
        return self._is_allowed(self.level(added))

    def _is_allowed(self, level: Fidelity) -> bool:
        return level is self.only if self.only is not None else level <= self.coarsest

    @property
    def coarsest(self) -> Fidelity:
        """The coarsest level that may be chosen."""
        return max(self.asked.level, self.budget.fidelity)

    # ------------------------------------------------------------------ one plan

    def _trace(self, added: Techniques, size: int) -> Candidate | None:
        """Return a plan, run once; None where it cannot be, and why is kept, or where no more may be."""
        techniques = self._techniques(added)
        known = self._known(techniques, size)
        if known is not None:
            return known
        if techniques in self._sized and self._sized[techniques] is None:
            return None
        begun = time.monotonic()
        late = begun + self._seconds_of_check() > self.deadline
        if self.looked >= self.most or late:
            self.complete, self.out_of_time = False, self.out_of_time or late
            return None
        self.looked += 1
        sized = self._sized.setdefault(techniques, self.planner.by_size(self.plan, techniques))
        assert sized is not None
        try:
            with catch_warnings(action="ignore", category=SnugfitWarning):  # of what nobody asked for
                prediction = sized.traced(size)
        except Exception as refusal:
            if not added and not isinstance(refusal, SnugfitError):
                raise  # the recipe's own plan; a rung that the planner cannot run must not take the answer with it
            if added:  # the recipe's own plan may be refused in micro-batches of one size alone
                self._sized[techniques] = None
            self._refuse(added, refusal)
            return None
        self._took[techniques] = max(self._took.get(techniques, 0.0), time.monotonic() - begun)
        return self._keep(techniques, size, prediction)

    def _seconds_of_check(self) -> float:
        """Return the seconds that it takes about to predict the choice in full, no more than half of those of a search that are bounded."""
        if self.deadline == math.inf or (choice := self.choice()) is None or choice in self._exact:
            return 0.0
        return min(_CHECK * self._took.get(choice.techniques, 0.0), (self.deadline - self._begun) / 2)

    def _tell(self, added: Techniques, size: int) -> None:
        """Tell a plan by those of other sizes that were run."""
        techniques = self._techniques(added)
        sized = self._sized.get(techniques)
        if sized is not None and self._known(techniques, size) is None:
            prediction = sized.between(size)
            if prediction is not None:
                self._keep(techniques, size, prediction)

    def _fill(self, added: Techniques, size: int) -> None:
        """Keep what a plan that streams needs with as many blocks on the device as make it faster, of those that there is room for."""
        techniques = self._techniques(added)
        one, sized, last = self._known(techniques, size), self._sized.get(techniques), self.planner.depth - 2
        if one is None or sized is None or not one.fits or last < 1:
            return

        def prediction_with(blocks: int) -> Prediction | None:
            return sized.staying(size, blocks) if blocks else one.prediction

        def too_many(blocks: int) -> bool:
            prediction = prediction_with(blocks)
            return prediction is None or not self._holds(prediction)

        most = bisect_left(range(1, last + 1), True, key=too_many)  # as many blocks fit
        limit = prediction_with(most)
        assert limit is not None
        seconds = limit.seconds_per_update

        def quick(blocks: int) -> bool:
            prediction = prediction_with(blocks)
            return prediction is not None and prediction.seconds_per_update <= seconds

        few = bisect_left(
            range(most + 1), True, key=quick
        )  # where all copies are hidden, more would save nothing
        if few and (prediction := prediction_with(few)) is not None:
            filled = keeping(techniques, few)
            if self._known(filled, size) is None:
                self._keep(filled, size, prediction)

    def _keep(self, techniques: Techniques, size: int, prediction: Prediction) -> Candidate:
        added = labels_of_added(techniques, self.asked.techniques)
        made = Candidate(techniques, size, added, prediction, self._holds(prediction))
        self.tried.append(made)
        self.progress(self.looked, self.count, self.choice(), self.only)
        return made

    def _known(self, techniques: Techniques, size: int) -> Candidate | None:
        alike = (one for one in self.tried if (one.techniques, one.micro_batch) == (techniques, size))
        return next(alike, None)

    def _checked(self, one: Candidate, prediction: Prediction) -> Candidate:
        """Return a plan that was tried, predicted anew in full, and kept so.

        Where it does not fit after all, as others before did not, all that were not predicted in full are taken to be short by as much.
        """
        made = replace(one, prediction=prediction, fits=self.budget.holds(prediction))
        self.tried[self.tried.index(one)] = made
        self._exact.append(made)
        if not made.fits:
            pairs = (
                (prediction.most_bytes, one.prediction.most_bytes),
                (prediction.host_peak_bytes, one.prediction.host_peak_bytes),
            )
            self._misses.append(max([1.0, *(full / rough for full, rough in pairs if rough)]))
            self.tried = [
                each if each in self._exact else replace(each, fits=self._holds(each.prediction))
                for each in self.tried
            ]
        return made

    def _holds(self, prediction: Prediction) -> bool:
        """Return whether a plan fits that was not predicted in full."""
        short = max(self._misses) if len(self._misses) >= _DOUBTED else 1.0
        return self.budget.has(prediction.most_bytes * short, prediction.host_peak_bytes * short)

    def _refuse(self, added: Techniques, refusal: Exception) -> None:
        known = isinstance(refusal, SnugfitError)
        reason = str(refusal) if known else f"the planner cannot run it: {type(refusal).__name__}: {refusal}"
        rung = " + ".join(map(label, added)) or "as the recipe says"
        if all(each.rung != rung for each in self.rejected):
            self.rejected.append(Rejected(rung, reason.splitlines()[0], None))

    # ------------------------------------------------------------------ what there is

    def _added(self, one: Candidate) -> Techniques:
        """Return the rungs that a plan has beyond the recipe's own techniques, whose blocks stay on the device by room alone.

        The plan has them with the settings of what they stand in for, such as the recipe's learning rate.
        """
        added = tuple(each for each in one.techniques if each not in self.asked.techniques)
        added = keeping(added, 0) if staying(added) else added
        return tuple(
            rung for rung in self._rungs if rung in added or any(stands_in(rung, each) for each in added)
        )

    def _techniques(self, added: Techniques) -> Techniques:
        """Return the recipe's techniques and those that are added, in one order however the set was come by."""
        return together(self.asked.techniques, sorted(added, key=self._order.__getitem__))

    @cached_property
    def _order(self) -> dict[Technique, int]:
        return order_of(self._rungs)

    def level(self, added: Techniques) -> Fidelity:
        return level_of(self._techniques(added))

    @cached_property
    def _rungs(self) -> Techniques:
        """Return all rungs that may be added on this device, and where several share the model as these do."""
        device = self.planner.machine.device
        rungs = [
            *placements(device),
            *(rung for level in Fidelity if level for rung in coarser(level, device)),
        ]
        own, sharing = self.asked.techniques, self.planner.sharing
        shared = [each for each in rungs if sharing is None or each.refused_on(sharing) is None]
        return tuple(rung for rung in shared if self.may_add(rung) and go_together(own, rung))

    @cached_property
    def count(self) -> int:
        """Return how many plans there are, of the level that is looked at: sets of rungs that go together, times micro-batches."""

        def sets(rungs: Techniques) -> int:
            return number_of_sets(self.asked.techniques, rungs) * len(self._sizes)

        if self.only is None:
            return sets(self._rungs)
        own, finer = (
            tuple(each for each in self._rungs if each.card.fidelity <= level)
            for level in (self.only, self.only - 1)
        )
        return sets(own) - (sets(finer) if self.only > self.asked.level else 0)

    @property
    def rows(self) -> int:
        """Return rows of a window."""
        return self.planner.subject.window.rows

    @property
    def _on_cpu(self) -> bool:
        return self.planner.machine.type == "cpu"

    @cached_property
    def _ends(self) -> tuple[int, int]:
        """The largest micro-batch of which a window has several, and the smallest; the window where there is no other."""
        smaller = [size for size in self._sizes if size < self.rows]
        return (smaller[0], smaller[-1]) if smaller else (self._sizes[0], self._sizes[0])

    @cached_property
    def _sizes(self) -> list[int]:
        """Micro-batches that are tried, the largest first; examples that are mixed in groups stay together."""
        if self.plan.micro_batch not in (None, AUTO):
            return [min(int(self.plan.micro_batch), self.rows)]
        if self.planner.fixed_micro_batch:
            return [self.rows]
        even_sizes = [size for size in sizes(self.rows) if not self.even or self.rows % size == 0]
        group = max((each.together for each in self.asked.techniques), default=1)
        return [size for size in even_sizes if size >= min(group, self.rows)] or [self.rows]
