"""The choice: which of all plans that the recipe allows and that fit serves the goal best.

A plan is the recipe's techniques, a format (how numbers are kept and computed), placements (what is kept, and where), and a
micro-batch. The ladder of plans that an expert would try goes first (`ladder`): formats from the most faithful on, each with placements from
the fastest on until one fits. Then the neighbours of the choice are tried, with one rung more, less or another, until none is better.

Bounds spare most plans a prediction (`bounds`), and a level below `mixed` is looked at only where it could be worth it. Predictions are
counted, not timed: the choice does not depend on what else the machine does.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby

from snugfit.core.technique import Fidelity
from snugfit.planner.choice import ladder
from snugfit.planner.choice.bounds import Bounds
from snugfit.planner.choice.candidate import Candidate
from snugfit.planner.choice.goals import ALIKE, FREE, Goal
from snugfit.planner.choice.rung_sets import (
    are_of_one_kind,
    is_about_states,
    lasting_of,
    moves_what_lasts,
    offloads_activations,
    recomputes,
    streams,
)
from snugfit.planner.choice.rungs import Techniques, freezes
from snugfit.planner.choice.trials import MOST
from snugfit.planner.trace.recorder import OutOfTime

_NEAR = 2.0
"""Times the time that it would need up to which a finer plan may become the choice."""

_PATIENCE = 20.0
"""Seconds that the choice is checked on when the time of a search is over, or somebody has asked for what there is."""

_LITTLE = 0.05
"""Of the memory that may be used, or of a plan that is to be smaller: to save less of it makes no room."""


@dataclass
class Search(Bounds):
    """Tries plans for one subject, and keeps what it found."""

    unchecked: bool = False
    _placements: dict[Techniques, list[Techniques]] = field(default_factory=dict)  # by format

    def best(self) -> Candidate | None:
        """Return the choice; None where nothing that was tried fits. The smallest is one of those that are quick enough beside the fastest."""
        if self.goal.name != "smallest":
            self._improve()
            return self.choice()
        goal, self.goal = self.goal, replace(self.goal, name="fastest")
        self._improve()
        self.goal = goal
        self.shrink()
        return self.choice()

    def among(self, level: Fidelity) -> Search:
        """Return a search for the fastest plan of one level, whatever is allowed, that knows what this one has found."""
        plans = (self.planner, self.plan, self.budget, self.deadline, self.asked, Goal())
        made = Search(*plans, progress=self.progress, may_add=self.may_add, even=self.even, only=level)
        made.tried = list(self.tried)
        made._sized, made._too_heavy, made._exact = self._sized, self._too_heavy, list(self._exact)
        made._least_seconds, made._least_bytes = self._least_seconds, self._least_bytes
        made._state_bytes = self._state_bytes
        made._pass_seconds, made._step_seconds = self._pass_seconds, self._step_seconds
        made._placement_seconds = self._placement_seconds
        made._misses = self._misses
        return made

    def shrink(self) -> None:
        """Look for the plan of the least memory: the leanest of the ladder, then what differs from the smallest by a rung.

        Where the smallest is the goal, it is looked for among plans that are quick enough, in micro-batches of all sizes.
        """
        for added in self._leanest([each for each in self.ladder() if self._may_be_small(each)]):
            if self._may_be_small(added):
                self._look_for_less(added, math.inf)
        settled: set[Techniques] = set()
        while (least := self._smallest_wanted()) is not None and least.techniques not in settled:
            settled.add(least.techniques)
            for added in self._neighbours(least, least.prediction.most_bytes):
                if self._may_be_small(added) and not self._needs_no_less(added, least):
                    self._look_for_less(added, least.prediction.most_bytes)

    def _smallest_wanted(self) -> Candidate | None:
        return (self.choice() if self.goal.name == "smallest" else None) or self.smallest()

    def _may_be_small(self, added: Techniques) -> bool:
        """Return whether a set of rungs is allowed, and quick enough where that is asked."""
        return self._allows(added) and (self.goal.name != "smallest" or self._may_be_faster(added))

    def _look_for_less(self, added: Techniques, bytes: float) -> None:
        """Predict a set of rungs in the smallest micro-batches; in others where it needs less than `bytes` in those, and they are too slow."""
        one = self._trace(added, self._sizes[-1])
        if one is None or self.goal.name != "smallest" or one.prediction.most_bytes >= bytes:
            return
        if one.prediction.seconds_per_update >= self._limit(one.level):
            self._look(added)

    def find_any(self) -> None:
        """Look for a plan that fits among the leanest, whatever the time, where that ran out before one was found."""
        if self.complete or self.choice() is not None:
            return
        deadline, self.deadline = self.deadline, math.inf
        leanest = self._leanest([each for each in self.ladder() if self._allows(each)])
        small = (added for added in ((), *leanest) if not self._has_no_room(added))
        any(self._fits_in(added, self._sizes[-1]) for added in small)
        self.deadline = deadline

    def needed(self) -> dict[str, int]:
        """Return the smallest memory in bytes in which anything fits that was found, by the level of precision, for all levels there are.

        What was looked at in vain before may be as much as a search may look at; the ladder's leanest plans are a few more.
        """
        self.most = self.looked + MOST
        for level in (each for each in Fidelity if each >= self.asked.level):
            formats = [each for each in self.ladder() if self.level(each) is level]
            for added in self._leanest(formats):
                self._trace(added, self._sizes[-1])
        return self.needs_by_level()

    def needs_by_level(self) -> dict[str, int]:
        """Return the smallest memory in bytes in which anything fits that was tried, by the level of precision."""
        needs_by_level: dict[str, int] = {}
        for level in Fidelity:
            needs = [each.prediction.most_bytes for each in self.tried if each.level is level]
            if needs:
                needs_by_level[level.label] = round(min(needs) / (1 - self.budget.margin))
        return needs_by_level

    def confirm(self, pick: Callable[[], Candidate | None]) -> Candidate | None:
        """Return the plan that is picked of those that were tried, predicted anew in full.

        This checks what the search took for granted. Where the plan does not fit after all, or takes longer, the search
        goes on from there: what was too slow beside it may not be. Where the time is over for long, it is given `unchecked`.
        """
        while (picked := pick()) is not None and picked not in self._exact:
            plan = replace(self.plan, micro_batch=picked.micro_batch)
            try:
                prediction = self.planner.predict(plan, picked.techniques, late=self._is_late)
            except OutOfTime:
                self.unchecked = True
                break
            made = self._checked(picked, prediction)
            slower = made.prediction.seconds_per_update / picked.prediction.seconds_per_update
            if not made.fits or slower > ALIKE:
                self.best()
        return picked

    def _is_late(self) -> bool:
        return time.monotonic() > self.deadline + _PATIENCE

    # ------------------------------------------------------------------ the ladder

    def _leanest(self, formats: Sequence[Techniques]) -> Iterator[Techniques]:
        """Yield the last placements of the last formats of a level, and of the first one whose weights are as in the last.

        States of few bits, which come later, may stay on the device where whole ones lie on the host.
        """
        alike = [each for each in formats if self._weights_of(each) == self._weights_of(formats[-1])]
        whole = [each for each in alike[:1] if not freezes(self._techniques(each))]
        for format in dict.fromkeys([*whole, *formats[-2:]]):
            yield from self._placed(format)[-2:]

    def ladder(self) -> list[Techniques]:
        """Return the recipe's own format and those of the ladder."""
        return [(), *filter(None, self._ladder)]

    @cached_property
    def _ladder(self) -> list[Techniques]:
        return ladder.formats(self.asked.techniques, self._rungs)

    def _formats(self) -> list[list[Techniques]]:
        """Return formats in the groups in which they are tried: level by level, and of those that cost nothing which is learned the fastest first."""

        def key(format: Techniques) -> tuple[Fidelity, float]:
            return self._turn(format), self.arithmetic(format)

        return [list(formats) for _, formats in groupby(sorted(self._ladder, key=key), key)]

    def _may_be_chosen(self, format: Techniques) -> bool:
        """Return whether a format may be chosen and could be worth it; on a CPU the recipe's own may be faster in smaller micro-batches."""
        own = self._on_cpu and not format
        return self._allows(format) and (own or self._may_be_faster(format))

    def _turn(self, format: Techniques) -> Fidelity:
        """Return the level with which a format is tried: levels that cost nothing which is learned together, unless the finest is the goal."""
        free = FREE if self.goal.name != "finest" else Fidelity.FULL
        return max(free, self.level(format))

    def _walk_all(self) -> None:
        """Walk each format that could be worth it.

        Of adapters beside weights in several formats the leanest comes first: it needs the fewest placements. Formats of which the weights alone
        do not fit come last, since to stream them takes its time.
        """
        for formats in self._formats():
            heavy, tight = [], []
            for format in filter(self._may_be_chosen, formats):
                steps = self._placed(format)
                first = None if self._is_too_heavy(steps[0]) else self._trace(steps[0], self._sizes[0])
                if self._is_too_heavy(steps[0]):
                    heavy.append(format)
                elif first is None or first.fits:
                    self._look(steps[0])
                elif freezes(first.techniques):
                    tight.append((format, first))
                elif self._may_be_faster(format):
                    self._place(format, first)
            for format, first in sorted(tight, key=lambda each: each[1].prediction.most_bytes):
                if self._may_be_faster(format):
                    self._place(format, first)
            for format in heavy:
                any(map(self._look_if_faster, filter(streams, self._placed(format))))

    def _placed(self, format: Techniques) -> list[Techniques]:
        """Return a format with each placement of the ladder."""
        if format not in self._placements:
            self._placements[format] = ladder.placed(self.asked.techniques, format, self._rungs)
        return self._placements[format]

    def _place(self, format: Techniques, first: Candidate) -> None:
        """Try a format that does not fit in one pass with one placement after the other, until one fits, then what lies before it."""
        steps = self._placed(format)
        if freezes(first.techniques):  # whose states may be too few to be placed
            more, usable = len(format), self.budget.usable
            steps = [each for each in steps if self._matter(each[more:], first, usable)]
        room = first.lasting <= self.budget.usable
        fits = room and self._look(steps[0])
        if fits and not self._may_be_faster(steps[0]):
            return  # no other placement would be faster by so much
        turn = min(ladder.TURN, len(steps) - 1)
        if fits:  # so does what needs less, in larger micro-batches
            for added in reversed(steps[1 : turn + 1]):
                self._look_if_faster(added)
        elif room and self._fits(steps[turn]):  # however slow, it tells whether those before it may fit
            fits = True
            # of what is alike, the one of larger micro-batches is taken
            if self._may_be_faster(steps[turn], ALIKE):
                self._look(steps[turn])
            for added in reversed(steps[1:turn]):
                if not self._look_if_faster(added) and self._is_known_to_fit_in_no_size(added):
                    break
        if fits:  # in the room of the states micro-batches may be larger, or activations be kept
            away = next((each for each in steps[turn + 1 :] if moves_what_lasts(each)), None)
            if away is not None:
                self._look_if_faster(away)
            return
        if room and self._misses_by_little(steps[turn]):  # what keeps some may need a little less
            any(map(self._look_if_faster, reversed(steps[1:turn])))
        for added in steps[turn + 1 :]:
            if (room or moves_what_lasts(added)) and self._look_if_faster(added):
                break

    def _improve(self) -> None:
        """Walk the ladder, then try plans that differ by a rung from the choice, and from its rivals, until nothing that does is better.

        What is too slow in one pass is so in several, but for a CPU. A finer choice may make a format worth it that was not when the ladder was walked.
        """
        settled: set[Techniques] = set()
        while True:
            self._walk_all()
            left = [each for each in self._leaders() if each.techniques not in settled]
            if not left:
                return
            best = left[0]
            settled.add(best.techniques)
            misses = not best.fits and best is not self.smallest()  # others may fit with less of its states
            for added in self._neighbours(best, self.budget.usable):
                if misses and not any(is_about_states(each) for each in {*added} - {*best.techniques}):
                    continue
                if self._allows(added) and self._may_be_better(added):
                    first = self._trace(added, self._sizes[0]) if best.fits else None
                    if first is None or (first.fits and self._on_cpu) or self._may_be_faster(added):
                        self._look(added)

    def _leaders(self) -> Iterator[Candidate]:
        """Yield the choice, or what comes nearest to fitting; then what little more speed, or fewer states, would make the choice."""
        best = self.choice() or self.smallest()
        if best is None:
            return
        if best.fits and self.goal.choose([best, *self.rivals]) is not best:
            return
        yield best
        if best.fits and best.level > FREE:
            finer = self.goal.choose([each for each in self._allowed() if each.level < best.level])
            near = _NEAR * self.goal.worth * best.prediction.seconds_per_update
            if finer is not None and finer.prediction.seconds_per_update < near:
                yield finer
        if best.fits and self.goal.name != "finest":
            for level in (each for each in Fidelity if each > max(best.level, FREE)):
                coarser = self.goal.choose([each for each in self._allowed() if each.level is level])
                if (
                    coarser is not None
                    and coarser.prediction.seconds_per_update < best.prediction.seconds_per_update
                ):
                    yield coarser
        for each in sorted(self._allowed(), key=lambda each: each.prediction.most_bytes):
            if self._just_misses(each) and self._may_be_faster(self._added(each)):
                yield each

    def _neighbours(self, one: Candidate, whole: int) -> list[Techniques]:
        """Return sets of rungs with one less, one in place of another, or one more; what saves too little of the whole is left out."""
        rungs, known = self._rungs, self._added(one)
        less = [tuple(each for each in known if each is not rung) for rung in known]
        neighbours = [*less]
        for rung in rungs:
            if rung in known or not self._matter((rung,), one, whole):
                continue
            if self._goes((*known, rung)):
                neighbours.append((*known, rung))
                if offloads_activations((rung,)):  # blocks that are computed again leave less to copy
                    neighbours += [
                        (*known, rung, each)
                        for each in rungs
                        if recomputes((each,)) and not recomputes(known)
                    ]
                neighbours += [
                    (*each, rung)
                    for each, gone in zip(less, known, strict=True)
                    if are_of_one_kind(rung, gone)
                ]
            else:  # in the place of what excludes it
                neighbours += [(*each, rung) for each in less]
        return [each for each in neighbours if self._goes(each)]

    def _matter(self, rungs: Techniques, one: Candidate, whole: int) -> bool:
        """Return whether there is anything to save for those that are about states and gradients, which adapters hardly have."""
        little = one.bytes_of("optimizer", "gradients") <= _LITTLE * whole and not self._just_misses(one)
        return not (any(map(is_about_states, rungs)) and one.prediction.peak_by_kind and little)

    def _misses_by_little(self, added: Techniques) -> bool:
        """Return whether the window in one pass fits but for little of the memory."""
        one = self._known(self._techniques(added), self._sizes[0])
        return one is not None and one.prediction.most_bytes <= (1 + _LITTLE) * self.budget.usable

    def _just_misses(self, one: Candidate) -> bool:
        """Return whether a plan would fit without its states and gradients, so that little of them may be what it lacks."""
        last = one.micro_batch == self._sizes[-1]
        need = one.prediction.most_bytes if last else self._least_bytes[lasting_of(one.techniques)]
        return 0 < need - self.budget.usable <= one.bytes_of("optimizer", "gradients")

    def _goes(self, added: Techniques) -> bool:
        rest: Techniques = ()
        for each in sorted(added, key=lambda rung: rung.card.fidelity is not Fidelity.ADAPTERS):
            if not ladder.goes(self.asked.techniques, rest, each):
                return False
            rest = (*rest, each)
        return True

    # ------------------------------------------------------------------ one set of rungs

    def _look_if_faster(self, added: Techniques) -> bool:
        """Look as `_look` does, but only where the window in one pass, which takes the least time, would be fast enough to be the choice.

        A CPU may be faster in several passes, by its caches.
        """
        if not self._may_be_faster(added) or self._has_no_room(added):
            return False
        if self._limit(self.level(added)) < math.inf and not self._on_cpu:
            self._trace(added, self._sizes[0])  # tells the least time of it
        return self._may_be_faster(added) and self._look(added)

    def _look(self, added: Techniques) -> bool:
        """Predict a set of rungs in micro-batches of the sizes that may be the choice; whether it fits in any."""
        whole = self._known(self._techniques(added), self._sizes[0])
        left = self._sizes_left(added) if whole is not None and not whole.fits else [self._ends[1]]
        if not left or self._has_no_room(added):
            return False
        smallest = left[-1]
        if not (self._fits(added) if smallest == self._ends[1] else self._fits_in(added, smallest)):
            return False
        if not self._fits_in(added, smallest):
            return True  # in one pass alone
        between = [size for size in self._sizes_left(added) if size > smallest]
        for size in between:
            if self._on_cpu or size == between[0]:  # what a CPU's caches hold is faster, which is on no line
                self._trace(added, size)
            else:
                self._tell(added, size)
        # a line lies above what it stands for: the first size that does not fit by it may
        for size in reversed(between[1:]):
            one = self._known(self._techniques(added), size)
            if one is not None and not one.fits and not self._fits_when_run(added, one):
                break
        if streams(added):
            for size in self._sizes:
                self._fill(added, size)
        return True

    def _fits(self, added: Techniques) -> bool:
        """Return whether a set of rungs fits in any micro-batch, by the smallest, and where that does not, by one pass.

        One pass goes first where it may show that what lasts elsewhere leaves no room: it is less to run.
        """
        if self._has_no_room(added):
            return False
        if moves_what_lasts(added):
            self._trace(added, self._sizes[0])
            if self._has_no_room(added):
                return False
        last = self._trace(added, self._ends[1])
        if last is None or not (last.fits or self._may_fit_whole(last)):
            return False
        whole = self._trace(added, self._sizes[0])
        return last.fits or (whole is not None and whole.fits)

    def _fits_in(self, added: Techniques, size: int) -> bool:
        one = self._trace(added, size)
        return one is not None and one.fits

    def _fits_when_run(self, added: Techniques, one: Candidate) -> bool:
        """Return whether a plan that others of its set say does not fit does so when it is run; only where it would be the choice."""
        if one.prediction.seconds_per_update >= self._limit(one.level):
            return False
        self.tried.remove(one)
        made = self._trace(added, one.micro_batch)
        if made is None:
            self.tried.append(one)
        return made is not None and made.fits
